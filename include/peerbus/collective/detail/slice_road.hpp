// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <peerbus/collective/team_map.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/function_ref.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/make_together.hpp>
#include <peerbus/rank_group.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/refinements.hpp>
#include <peerbus/window.hpp>

namespace peerbus::collective::detail {

/// The bytes of a page's payload that one peer reads.
struct byte_range {
  std::size_t offset = 0;  ///< from the start of the payload
  std::size_t bytes = 0;   ///< the length; no more than `team_map::slice_bytes`
};

/// Returns the range of the own page that a peer reads.
using reach = peerbus::detail::function_ref<byte_range(rank_id)>;

/// How the page of a rank gets to its peers. Near peers read it where it lies; to far peers it is
/// put. It is the one place of the collectives that knows the transport, and a type of its own, so
/// that everything above it is compiled once.
class slice_road {
 public:
  slice_road(const slice_road&) = delete;
  slice_road& operator=(const slice_road&) = delete;
  virtual ~slice_road() = default;

  /// Publishes the own page of `round`: puts the range of `to_peer` to each far peer, with the
  /// header if `with_header`, and signals `round` to all peers.
  virtual errc publish(std::uint64_t round, bool with_header, reach to_peer) noexcept = 0;
  /// Waits until `peer` has published its page of `round`.
  virtual errc await(std::uint64_t round, rank_id peer, deadline until) noexcept = 0;
  /// Returns the latest round that `peer` has published.
  [[nodiscard]] virtual std::uint64_t latest(rank_id peer) const noexcept = 0;

  /// Returns the group of the ranks.
  [[nodiscard]] rank_group& group() const noexcept { return *group_; }
  /// Returns the places and sizes of the memory.
  [[nodiscard]] const team_map& map() const noexcept { return map_; }
  /// Returns the own page of `round`, header first.
  [[nodiscard]] std::byte* page(std::uint64_t round) const noexcept {
    return own_ + map_.page_at(round);
  }
  /// Returns the header of the page of `peer`, another rank.
  [[nodiscard]] const std::byte* header(std::uint64_t round, rank_id peer) const noexcept {
    const std::byte* const near = near_[peer.index()];
    return near != nullptr ? near + map_.page_at(round) : own_ + map_.slot_at(round, peer);
  }
  /// Returns the range of the payload of `peer`, another rank, which begins there at `offset` and
  /// was published for this rank.
  [[nodiscard]] const std::byte* payload(std::uint64_t round, rank_id peer,
                                         std::size_t offset) const noexcept {
    const bool is_near = near_[peer.index()] != nullptr;
    return header(round, peer) + team_map::header_bytes + (is_near ? offset : 0);
  }
  /// Returns room for a pointer per rank.
  [[nodiscard]] std::span<const std::byte*> sources() noexcept { return sources_; }
  /// Returns room for the addresses of operands in a window, by rank.
  [[nodiscard]] std::span<std::byte*> operands() noexcept { return operands_; }

 protected:
  slice_road(rank_group& group, const team_map& map, std::byte* own)
      : group_{&group},
        map_{map},
        own_{own},
        near_(group.size()),
        sources_(group.size()),
        operands_(group.size()) {}

  /// Notes where the memory of `peer` is read.
  void set_near(rank_id peer, const std::byte* part) noexcept { near_[peer.index()] = part; }
  [[nodiscard]] bool is_near(rank_id peer) const noexcept { return near_[peer.index()] != nullptr; }

 private:
  rank_group* group_;
  team_map map_;
  std::byte* own_;
  std::vector<const std::byte*> near_;  // By rank: the start of its part, or nullptr.
  std::vector<const std::byte*> sources_;
  std::vector<std::byte*> operands_;
};

/// The road over `Transport`.
template <transport Transport>
class slice_road_over final : public slice_road {
 public:
  /// Whether pages must be put to some peers, so that the memory needs slots.
  static constexpr bool has_slots = !direct_transport<Transport>;

  slice_road_over(communicator<Transport>& comm, const team_map& map, window<Transport> memory)
      : slice_road{comm, map, memory.local().data()}, memory_{std::move(memory)} {
    for (const rank_id peer : comm.peers()) set_near(peer, near_part(peer));
  }

  errc publish(std::uint64_t round, bool with_header, reach to_peer) noexcept override {
    if constexpr (has_slots)
      for (const rank_id peer : group().peers()) {
        if (is_near(peer)) continue;
        if (const errc code = put(round, peer, with_header, to_peer(peer)); code != errc::ok)
          return code;
      }
    return memory_.signal_each(group().peers(), signal_of(group().rank()), round);
  }
  errc await(std::uint64_t round, rank_id peer, deadline until) noexcept override {
    return memory_.wait(signal_of(peer), round, until, peer);
  }
  [[nodiscard]] std::uint64_t latest(rank_id peer) const noexcept override {
    return memory_.value(signal_of(peer));
  }

 private:
  static constexpr signal_id signal_of(rank_id source) noexcept {
    return static_cast<signal_id>(source.index());
  }

  /// Returns the part of `peer` if it loads and stores, otherwise nullptr.
  [[nodiscard]] const std::byte* near_part(rank_id peer) const noexcept {
    if constexpr (direct_transport<Transport>)
      return memory_.peer(peer).data();
    else if constexpr (partly_direct_transport<Transport>)
      return memory_.find_peer(peer).data();
    else
      return nullptr;
  }

  errc put(std::uint64_t round, rank_id peer, bool with_header, byte_range range) noexcept {
    const std::size_t slot = map().slot_at(round, group().rank());
    const std::span own{page(round), team_map::header_bytes + map().page_bytes};
    const std::span<const std::byte> payload =
        own.subspan(team_map::header_bytes + range.offset, range.bytes);
    if (!with_header)
      return range.bytes == 0 ? errc::ok
                              : memory_.put(peer, slot + team_map::header_bytes, payload);
    if (range.offset == 0)
      return memory_.put(peer, slot, own.first(team_map::header_bytes + range.bytes));
    const put_piece pieces[] = {{slot, own.first(team_map::header_bytes)},
                                {slot + team_map::header_bytes, payload}};
    return memory_.put_run(peer, pieces);
  }

  window<Transport> memory_;
};

/// Makes the road of `comm`. Collective.
/// Throws, on all ranks: as `communicator::make_window`, and out_of_memory.
template <transport Transport>
std::unique_ptr<slice_road> make_slice_road(communicator<Transport>& comm, const team_map& map,
                                            deadline until) {
  auto memory = comm.make_window(map.window_bytes(), map.signals(), until);
  return make_together(comm, "the tables of a team", until, [&]() -> std::unique_ptr<slice_road> {
    return std::make_unique<slice_road_over<Transport>>(comm, map, std::move(memory));
  });
}

}  // namespace peerbus::collective::detail
