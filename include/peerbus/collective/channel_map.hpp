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
/// which the peer says what it expects from this rank. Where peers' memory cannot be stored to, the
/// same follows once more, from which this rank puts slots and lines to the peer.
struct channel_map {
  /// The bytes that describe a message, before the payload of a slot and in a line.
  static constexpr std::size_t header_bytes = cache_line_bytes;
  /// Where these bytes have a word of their own: in a slot, where the message lies at its sender,
  /// or 0, or `unmapped`; in a line, which message could not be read there.
  static constexpr std::size_t word_at = header_bytes - sizeof(std::uint64_t);
  /// The slots, and the lines, that a pair of ranks uses in turn.
  static constexpr std::size_t generations = 2;

  /// Returns what the word of a slot says if message number `message`, which could not be read, is
  /// not all mapped memory at its sender. No address is so high, and no other message says so.
  [[nodiscard]] static constexpr std::uint64_t unmapped(std::uint64_t message) noexcept {
    return ~message;
  }

  std::size_t ranks = 0;       ///< the size of the group
  std::size_t slot_bytes = 0;  ///< the payload of a slot, which is the largest slice of a message
  bool is_staged = false;      ///< whether slots are put to some peers from memory of this rank

  /// Divides `scratch_bytes` among the slots of `ranks` ranks.
  constexpr channel_map(std::size_t ranks_in_group, std::size_t scratch_bytes, bool staged) noexcept
      : ranks{ranks_in_group}, is_staged{staged} {
    const std::size_t slot = scratch_bytes / (ranks * (staged ? 2 : 1) * generations);
    const std::size_t headers = 2 * header_bytes;
    slot_bytes = slot < headers ? 0 : (slot - headers) / cache_line_bytes * cache_line_bytes;
  }

  /// Returns where the slot for slice number `slice` of `peer` begins, header first.
  [[nodiscard]] constexpr std::size_t slot_at(rank_id peer, std::uint64_t slice) const noexcept {
    return block_at(peer) + (slice % generations) * (header_bytes + slot_bytes);
  }
  /// Returns where the line for what `peer` expects as message number `message` begins.
  [[nodiscard]] constexpr std::size_t line_at(rank_id peer, std::uint64_t message) const noexcept {
    return block_at(peer) + generations * (header_bytes + slot_bytes) +
           (message % generations) * header_bytes;
  }
  /// Returns how far behind a slot or line of a peer the memory lies from which the same is put to
  /// that peer.
  [[nodiscard]] constexpr std::size_t staging_at() const noexcept { return ranks * block_bytes(); }
  /// Returns the bytes of the window at each rank, signals not included.
  [[nodiscard]] constexpr std::size_t window_bytes() const noexcept {
    return ranks * block_bytes() * (is_staged ? 2 : 1);
  }
  /// Returns the signals of each rank: three that each rank raises.
  [[nodiscard]] constexpr std::size_t signals() const noexcept { return 3 * ranks; }
  /// Returns all bytes of the channels at each rank.
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
