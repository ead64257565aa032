// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <peerbus/core/align.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>

namespace peerbus::collective {

/// The places and sizes of a team's memory in the part of each rank.
///
/// The memory has two halves, which rounds use in turn. A half begins with a page, which the rank
/// writes: one cache line for the description of the call, half a line for the notice of the round,
/// then the payload. Therefore the notice and the first 32 bytes of payload share a line, and peers
/// fetch both at once. If some peers cannot read the page, slots follow it, one for the page of
/// each rank that must put its page to this rank.
struct team_map {
  /// The offset of the notice in a page or slot, after the description of a call.
  static constexpr std::size_t notice_at = cache_line_bytes;
  /// The size of a page or slot before its payload, in bytes.
  static constexpr std::size_t header_bytes = notice_at + cache_line_bytes / 2;

  std::size_t ranks = 0;       ///< the size of the group
  std::size_t page_bytes = 0;  ///< the payload of a page
  std::size_t slot_bytes = 0;  ///< the payload of a slot; 0 if there are no slots

  /// Divides `scratch_bytes` among the halves of a team of `ranks_in_team` ranks. `has_slots` is
  /// true if some ranks must put their pages because peers cannot read them.
  constexpr team_map(std::size_t ranks_in_team, std::size_t scratch_bytes, bool has_slots) noexcept
      : ranks{ranks_in_team} {
    const std::size_t half = scratch_bytes / 2;
    if (!has_slots) {
      page_bytes = least_payload + lines(rest(half, least_bytes));
      return;
    }
    // A page as large as all slots together holds a part of slot size for each peer.
    const std::size_t part = lines(rest(rest(half, least_bytes) / ranks, least_bytes) / 2);
    slot_bytes = least_payload + part;
    page_bytes = least_payload + ranks * part;
  }

  /// Returns the size of the largest range that a peer may read from a page with `parts` equal
  /// ranges, in bytes: a multiple of a cache line.
  [[nodiscard]] constexpr std::size_t slice_bytes(std::size_t parts) const noexcept {
    const std::size_t part = lines(page_bytes / parts);
    return slot_bytes == 0 ? part : std::min(part, lines(slot_bytes));
  }
  /// Returns the offset of the page of `round`.
  [[nodiscard]] constexpr std::size_t page_at(std::uint64_t round) const noexcept {
    return (round % 2) * half_bytes();
  }
  /// Returns the offset of the slot for the page of `source` in `round`.
  [[nodiscard]] constexpr std::size_t slot_at(std::uint64_t round, rank_id source) const noexcept {
    return page_at(round) + header_bytes + page_bytes +
           source.index() * (header_bytes + slot_bytes);
  }
  /// Returns the size of the window at each rank, in bytes, without signals.
  [[nodiscard]] constexpr std::size_t window_bytes() const noexcept { return 2 * half_bytes(); }
  /// Returns the number of signals at each rank: one, or one for each rank if pages are put to
  /// slots.
  [[nodiscard]] constexpr std::size_t signals() const noexcept {
    return slot_bytes == 0 ? 1 : ranks;
  }
  /// Returns the size of the team's memory at each rank, in bytes, with signals.
  [[nodiscard]] constexpr std::size_t total_bytes() const noexcept {
    return window_bytes() + signals() * sizeof(signal_word);
  }

 private:
  // The payload that fills the line of the notice, and the bytes of a page that has no more.
  static constexpr std::size_t least_payload = cache_line_bytes / 2;
  static constexpr std::size_t least_bytes = header_bytes + least_payload;

  static constexpr std::size_t lines(std::size_t bytes) noexcept {
    return bytes / cache_line_bytes * cache_line_bytes;
  }
  static constexpr std::size_t rest(std::size_t bytes, std::size_t taken) noexcept {
    return bytes < taken ? 0 : bytes - taken;
  }
  [[nodiscard]] constexpr std::size_t half_bytes() const noexcept {
    const std::size_t slots = slot_bytes == 0 ? 0 : ranks * (header_bytes + slot_bytes);
    return header_bytes + page_bytes + slots;
  }
};

}  // namespace peerbus::collective
