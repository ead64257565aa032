// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>

#include <peerbus/core/rank.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/plan/send_plan.hpp>
#include <peerbus/moe/set_view.hpp>

namespace peerbus::moe {

/// The rows that one rank sent to other ranks by one dispatch, and the bytes that they and their
/// outputs take. Rows for experts of the rank itself are not counted, nor are counts, signals,
/// notes and output attachments.
struct row_traffic {
  std::size_t near_rows = 0;          ///< rows stored into the memory of their receivers
  std::size_t far_rows = 0;           ///< rows put to ranks whose memory this rank cannot store to
  std::size_t near_bytes = 0;         ///< bytes of `near_rows` and of the data beside them
  std::size_t far_bytes = 0;          ///< bytes of `far_rows` and of the data beside them
  std::size_t near_output_bytes = 0;  ///< bytes that combine loads or experts store for `near_rows`
  std::size_t far_output_bytes = 0;   ///< bytes that combine puts for `far_rows`

  /// Adds the rows of another level of the same dispatch.
  constexpr row_traffic& operator+=(const row_traffic& other) noexcept {
    near_rows += other.near_rows;
    far_rows += other.far_rows;
    near_bytes += other.near_bytes;
    far_bytes += other.far_bytes;
    near_output_bytes += other.near_output_bytes;
    far_output_bytes += other.far_output_bytes;
    return *this;
  }
};

namespace detail {

/// Counts the rows of a batch. `sets` are the sets of the batch, which are empty for far ranks.
inline row_traffic traffic_of(const send_plan& leaving, const memory_map& map,
                              std::span<const set_view> sets, rank_id own_rank) noexcept {
  row_traffic found;
  for (std::size_t t = 0; t < leaving.tokens(); ++t)
    for (const row_place& place : leaving.places(t)) {
      if (!place.sent() || place.rank == own_rank.index()) continue;
      ++(sets[place.rank] ? found.near_rows : found.far_rows);
    }
  found.near_bytes = found.near_rows * map.row_bytes_in_all();
  found.far_bytes = found.far_rows * map.row_bytes_in_all();
  found.near_output_bytes = found.near_rows * map.output_bytes();
  found.far_output_bytes = found.far_rows * map.output_bytes();
  return found;
}

}  // namespace detail

}  // namespace peerbus::moe
