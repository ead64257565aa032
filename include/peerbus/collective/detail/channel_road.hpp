// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <peerbus/collective/channel_map.hpp>
#include <peerbus/collective/detail/call_header.hpp>
#include <peerbus/collective/detail/copy.hpp>
#include <peerbus/collective/detail/near_part.hpp>
#include <peerbus/communicator/communicator.hpp>
#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/communicator/window.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::collective::detail {

/// The description of a message by one end of a channel: how many elements of which type.
struct message_header {
  element_type element{};
  std::uint64_t count = 0;

  friend constexpr bool operator==(const message_header&, const message_header&) = default;
};
static_assert(sizeof(message_header) <= channel_map::header_bytes);

/// The signals from a rank to a peer.
enum class channel_signal : std::uint32_t {
  sent,     ///< the number of slices that it has put to the peer
  taken,    ///< the number of slices of the peer that it has read
  expected  ///< the number of messages of the peer for which it has said what it expects
};

/// A message under way in one direction between this rank and a peer.
struct channel_end {
  std::uint64_t messages = 0;        ///< earlier messages
  std::uint64_t slices = 0;          ///< slices put or read, of all messages
  std::size_t transfer = 0;          ///< the message's place in the batch; past its end if none
  std::size_t done = 0;              ///< bytes of the message that are put or read
  bool has_begun = false;            ///< whether its first slice is put or read
  std::optional<bool> is_matched{};  ///< whether both ends describe it alike, once that is known
};

/// How slots and lines get to a peer: by stores if it is near, otherwise by puts. It is the one
/// place of channels that knows the transport.
class channel_road {
 public:
  channel_road(const channel_road&) = delete;
  channel_road& operator=(const channel_road&) = delete;
  virtual ~channel_road() = default;

  /// Raises the signal `kind` of this rank at `peer` to `value`.
  virtual errc raise(rank_id peer, channel_signal kind, std::uint64_t value) noexcept = 0;
  /// Waits until `peer` has raised its signal `kind` to `value`.
  virtual errc await(rank_id peer, channel_signal kind, std::uint64_t value,
                     deadline until) noexcept = 0;
  /// Returns to what `peer` has raised its signal `kind`.
  [[nodiscard]] virtual std::uint64_t value(rank_id peer, channel_signal kind) const noexcept = 0;

  /// Writes `header`, unless it is nullptr, and `payload` to the slot or line at `peer` that lies
  /// there at `offset`. `staging` is where this rank may keep the bytes until they are delivered.
  errc write(rank_id peer, std::size_t offset, std::size_t staging, const message_header* header,
             std::span<const std::byte> payload) noexcept {
    std::byte* const near = near_[peer.index()];
    std::byte* const target = near != nullptr ? near + offset : own_ + staging;
    if (header != nullptr) std::memcpy(target, header, sizeof *header);
    copy_bytes(target + channel_map::header_bytes, payload.data(), payload.size());
    if (near != nullptr) return errc::ok;
    const std::size_t skipped = header != nullptr ? 0 : channel_map::header_bytes;
    return put(peer, offset + skipped,
               {target + skipped, channel_map::header_bytes - skipped + payload.size()});
  }

  /// Returns the group of the ranks.
  [[nodiscard]] rank_group& group() const noexcept { return *group_; }
  /// Returns the places and sizes of the memory.
  [[nodiscard]] const channel_map& map() const noexcept { return map_; }
  /// Returns this rank's part of the memory.
  [[nodiscard]] const std::byte* own() const noexcept { return own_; }
  /// Returns the end of the channel to `peer`.
  [[nodiscard]] channel_end& out(rank_id peer) noexcept { return out_[peer.index()]; }
  /// Returns the end of the channel from `peer`.
  [[nodiscard]] channel_end& in(rank_id peer) noexcept { return in_[peer.index()]; }

 protected:
  channel_road(rank_group& group, const channel_map& map, std::byte* own)
      : group_{&group},
        map_{map},
        own_{own},
        near_(group.size()),
        out_(group.size()),
        in_(group.size()) {}

  virtual errc put(rank_id peer, std::size_t offset, std::span<const std::byte> bytes) noexcept = 0;
  /// Notes where the memory of `peer` is stored to.
  void set_near(rank_id peer, std::byte* part) noexcept { near_[peer.index()] = part; }

 private:
  rank_group* group_;
  channel_map map_;
  std::byte* own_;
  std::vector<std::byte*> near_;  // By rank: the start of its part, or nullptr.
  std::vector<channel_end> out_;
  std::vector<channel_end> in_;
};

/// The road over `Transport`.
template <transport Transport>
class channel_road_over final : public channel_road {
 public:
  /// Whether slots must be put to some peers, so that the memory needs staging.
  static constexpr bool is_staged = !direct_transport<Transport>;

  channel_road_over(communicator<Transport>& comm, const channel_map& map, window<Transport> memory)
      : channel_road{comm, map, memory.local().data()}, memory_{std::move(memory)} {
    for (const rank_id peer : comm.peers()) set_near(peer, near_part(memory_, peer));
  }

  errc raise(rank_id peer, channel_signal kind, std::uint64_t value) noexcept override {
    return memory_.signal(peer, signal_of(group().rank(), kind), value);
  }
  errc await(rank_id peer, channel_signal kind, std::uint64_t value,
             deadline until) noexcept override {
    return memory_.wait(signal_of(peer, kind), value, until, peer);
  }
  [[nodiscard]] std::uint64_t value(rank_id peer, channel_signal kind) const noexcept override {
    return memory_.value(signal_of(peer, kind));
  }

 private:
  errc put(rank_id peer, std::size_t offset, std::span<const std::byte> bytes) noexcept override {
    return memory_.put(peer, offset, bytes);
  }
  static constexpr signal_id signal_of(rank_id raiser, channel_signal kind) noexcept {
    return static_cast<signal_id>(3 * raiser.index() + static_cast<std::size_t>(kind));
  }

  window<Transport> memory_;
};

/// Makes the road of `comm`. Collective.
/// Throws, on all ranks: as `communicator::make_window`, and out_of_memory.
template <transport Transport>
std::unique_ptr<channel_road> make_channel_road(communicator<Transport>& comm,
                                                const channel_map& map, deadline until) {
  auto memory = comm.make_window(map.window_bytes(), map.signals(), until);
  return comm.on_all_ranks("the tables of channels", until, [&]() -> std::unique_ptr<channel_road> {
    return std::make_unique<channel_road_over<Transport>>(comm, map, std::move(memory));
  });
}

}  // namespace peerbus::collective::detail
