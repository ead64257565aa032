// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <peerbus/collective/channel_map.hpp>
#include <peerbus/collective/detail/call_header.hpp>
#include <peerbus/communicator/any_window.hpp>
#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::collective::detail {

/// The description of a message by one end of a channel: the type and the number of elements.
struct message_header {
  element_type element{};
  std::uint64_t count = 0;

  friend constexpr bool operator==(const message_header&, const message_header&) = default;
};

/// The line that describes a message, before its first slice or in a line of its own. A word
/// follows it.
struct message_line {
  message_header header{};
  std::uint64_t bytes = 0;    ///< in a slot: the size of the first slice
  std::uint64_t is_read = 0;  ///< in a line: whether the receiver reads the rest in private memory
};
static_assert(sizeof(message_line) <= channel_map::word_at);

/// The signals from a rank to a peer.
enum class channel_signal : std::uint32_t {
  sent,     ///< the number of slices that the rank has put to the peer
  taken,    ///< the number of slices of the peer that it has read, with private reads
  expected  ///< the number of messages of the peer that it has described
};

/// A message under way in one direction between this rank and a peer.
struct channel_end {
  std::uint64_t messages = 0;        ///< the number of earlier messages
  std::uint64_t slices = 0;          ///< the number of slices put or read, for all messages
  std::size_t transfer = 0;          ///< the message's index in the batch; past its end if none
  std::size_t done = 0;              ///< the bytes of the message that are put or read
  bool has_begun = false;            ///< whether its first slice is put or read
  std::optional<bool> is_matched{};  ///< whether both ends describe it alike, if known
  bool is_read = false;              ///< whether the receiver reads it in private memory
  bool is_unreadable = false;        ///< whether the receiver has failed to read it there
  errc fault = errc::ok;             ///< why it is complete without its bytes
  unsigned unreadable = 0;           ///< the number of messages that the receiver failed to read
  std::int64_t since = 0;            ///< the time when it was next, for listeners
};

/// The memory through which the channels of a rank send and receive, and the ends of these
/// channels. A rank stores to slots and lines of a near peer, and puts them to a far peer.
///
/// Functions that return `errc` return ok or the first failure of the transport. They cost one call
/// of `any_window`, except `write` to a near peer, which costs none.
class channel_memory {
 public:
  /// Takes `memory`, which must have the sizes of `map`.
  channel_memory(std::unique_ptr<any_window> memory, const channel_map& map);
  channel_memory(const channel_memory&) = delete;
  channel_memory& operator=(const channel_memory&) = delete;
  ~channel_memory() = default;

  /// Raises the signal `kind` of this rank at `peer` to `value`.
  errc raise(rank_id peer, channel_signal kind, std::uint64_t value) noexcept;
  /// Waits until `peer` has raised its signal `kind` to `value`.
  errc await(rank_id peer, channel_signal kind, std::uint64_t value, deadline until) noexcept;
  /// Returns the value to which `peer` has raised its signal `kind`.
  [[nodiscard]] std::uint64_t value(rank_id peer, channel_signal kind) const noexcept;

  /// Returns the highest number of a message or slice of this rank.
  [[nodiscard]] std::uint64_t latest() const noexcept;
  /// Discards all messages under way, and continues after message and slice `number` of each
  /// channel. `number` must be at least `latest()` of every rank. The other ends of the channels do
  /// the same.
  errc go_on(std::uint64_t number) noexcept;

  /// Writes `line`, unless it is nullptr, and `payload` to the slot or line at offset `offset` of
  /// `peer`'s part. This rank may keep the bytes at offset `staging` until they are delivered.
  errc write(rank_id peer, std::size_t offset, std::size_t staging, const message_line* line,
             std::span<const std::byte> payload) noexcept;
  ///@{
  /// Accesses the word of the slot or line at `offset` of a near peer's memory, or of this rank's.
  /// Does not order other accesses.
  void store_word(rank_id peer, std::size_t offset, std::uint64_t value) noexcept;
  [[nodiscard]] std::uint64_t word(std::size_t offset) const noexcept;
  ///@}
  /// Reads private memory of a peer. Contract as `any_window::get_private`.
  errc get_private(rank_id peer, std::uint64_t address, std::span<std::byte> target) noexcept {
    return memory_->get_private(peer, address, target);
  }
  /// Returns whether this rank can load from and store to memory of `peer`.
  [[nodiscard]] bool is_near(rank_id peer) const noexcept { return memory_->part(peer) != nullptr; }

  /// Returns the group of the ranks.
  [[nodiscard]] rank_group& group() const noexcept { return memory_->group(); }
  /// Returns the places and sizes of the memory.
  [[nodiscard]] const channel_map& map() const noexcept { return map_; }
  /// Returns this rank's part of the memory.
  [[nodiscard]] const std::byte* own() const noexcept { return own_; }
  /// Returns the end of the channel to `peer`.
  [[nodiscard]] channel_end& out(rank_id peer) noexcept { return out_[peer.index()]; }
  /// Returns the end of the channel from `peer`.
  [[nodiscard]] channel_end& in(rank_id peer) noexcept { return in_[peer.index()]; }

 private:
  std::unique_ptr<any_window> memory_;
  channel_map map_;
  std::byte* own_;
  std::vector<channel_end> out_;
  std::vector<channel_end> in_;
};

/// Makes the memory of channels between all ranks of `group`, in a window that `make_window` makes.
/// Collective.
/// Throws, on all ranks: as `communicator::make_window`, and out_of_memory.
std::unique_ptr<channel_memory> make_channel_memory(rank_group& group, window_source make_window,
                                                    const channel_map& map, deadline until);

}  // namespace peerbus::collective::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/collective/detail/channel_memory.ipp>  // IWYU pragma: keep
#endif
