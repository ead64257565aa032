// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include <peerbus/core/align.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>

namespace peerbus::collective {

/// The places and sizes of the memory of `channels` in the part of each rank.
///
/// For each peer there are two slots, which its messages to this rank use in turn, and two lines in
/// which the peer says what it expects from this rank. If peers' memory cannot be stored to, a
/// second copy of slots and lines follows, from which this rank puts slots and lines to the peer.
struct channel_map {
  /// The size of the description of a message, before the payload of a slot and in a line.
  static constexpr std::size_t header_bytes = cache_line_bytes;
  /// The offset of a word of its own in the description. In a slot, the word is the address of the
  /// message at its sender, 0, or `unmapped`. In a line, it names the message that could not be
  /// read.
  static constexpr std::size_t word_at = header_bytes - sizeof(std::uint64_t);
  /// The number of slots, and of lines, that a pair of ranks uses in turn.
  static constexpr std::size_t generations = 2;

  /// Returns the word of a slot for message number `message`, if the message could not be read and
  /// is not all mapped memory at its sender. No address is so high, and the word of every other
  /// message differs.
  [[nodiscard]] static constexpr std::uint64_t unmapped(std::uint64_t message) noexcept {
    return ~message;
  }

  std::size_t ranks = 0;       ///< the size of the group
  std::size_t slot_bytes = 0;  ///< the payload of a slot, which is the largest slice of a message
  bool is_staged = false;      ///< whether slots are put to some peers from memory of this rank

  /// Divides `scratch_bytes` among the slots of `ranks_in_group` ranks.
  constexpr channel_map(std::size_t ranks_in_group, std::size_t scratch_bytes, bool staged) noexcept
      : ranks{ranks_in_group}, is_staged{staged} {
    const std::size_t slot = scratch_bytes / (ranks * (staged ? 2 : 1) * generations);
    const std::size_t headers = 2 * header_bytes;
    slot_bytes = slot < headers ? 0 : (slot - headers) / cache_line_bytes * cache_line_bytes;
  }

  /// Returns the offset of the slot for slice number `slice` of `peer`, header first.
  [[nodiscard]] constexpr std::size_t slot_at(rank_id peer, std::uint64_t slice) const noexcept {
    return block_at(peer) + (slice % generations) * (header_bytes + slot_bytes);
  }
  /// Returns the offset of the line in which `peer` describes message number `message` that it
  /// expects.
  [[nodiscard]] constexpr std::size_t line_at(rank_id peer, std::uint64_t message) const noexcept {
    return block_at(peer) + generations * (header_bytes + slot_bytes) +
           (message % generations) * header_bytes;
  }
  /// Returns the distance from a slot or line at a peer to the memory at this rank from which it is
  /// put to that peer.
  [[nodiscard]] constexpr std::size_t staging_at() const noexcept { return ranks * block_bytes(); }
  /// Returns the size of the window at each rank, in bytes, without signals.
  [[nodiscard]] constexpr std::size_t window_bytes() const noexcept {
    return ranks * block_bytes() * (is_staged ? 2 : 1);
  }
  /// Returns the number of signals at each rank: three for each rank that raises them.
  [[nodiscard]] constexpr std::size_t signals() const noexcept { return 3 * ranks; }
  /// Returns the size of the channels at each rank, in bytes, with signals.
  [[nodiscard]] constexpr std::size_t total_bytes() const noexcept {
    return window_bytes() + signals() * sizeof(signal_word);
  }

 private:
  [[nodiscard]] constexpr std::size_t block_bytes() const noexcept {
    return generations * (2 * header_bytes + slot_bytes);
  }
  [[nodiscard]] constexpr std::size_t block_at(rank_id peer) const noexcept {
    return peer.index() * block_bytes();
  }
};

}  // namespace peerbus::collective
