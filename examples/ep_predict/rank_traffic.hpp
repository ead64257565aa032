// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <peerbus/moe/config.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/memory_map.hpp>

#include "load.hpp"
#include "visit_order.hpp"

namespace ep_predict {

/// A run of puts to one peer, which is one message.
struct put_message {
  std::uint32_t pieces = 0;
  std::uint64_t bytes = 0;
};

/// The most pieces of a run: as many as `moe::put_list` passes to the transport at once.
inline constexpr std::uint32_t most_pieces = 32;

/// The bytes of all messages of a load, by the library's own arithmetic.
struct message_sizes {
  explicit message_sizes(const load& batch);

  /// Returns the counts that a rank sends to `peer`.
  [[nodiscard]] put_message counts_for(std::size_t peer) const noexcept {
    const std::size_t blocks =
        has_slots ? geometry.blocks.count(peerbus::rank_id{peer}) : geometry.blocks.experts();
    return {1, map.counts_at + blocks * map.count_bytes};
  }
  /// Calls `visit` with each message that takes `rows` outputs home to one rank.
  template <class Visit>
  void for_each_output(std::uint32_t rows, Visit&& visit) const {
    for (; rows != 0; rows -= std::min(rows, most_pieces)) {
      const std::uint32_t pieces = std::min(rows, most_pieces);
      visit(put_message{pieces, pieces * map.output_bytes()});
    }
  }

  peerbus::moe::block_geometry geometry;
  peerbus::moe::memory_map map;
  bool has_slots;  ///< rows leave at once; otherwise after the counts of all ranks have come
};

/// The rows that a rank sends in a dispatch, by the position of their receiver in the rank's order
/// of visits.
class rank_traffic {
 public:
  /// Draws the routing as the simulation does. Whether rows of neighbouring blocks lie together
  /// depends on the rows of other ranks, and is drawn, too.
  /// Cost: 12 bytes for each peer.
  rank_traffic(const load& batch, const message_sizes& sizes, const visit_order& order,
               std::size_t rank);

  /// Returns the messages with rows to the peer at `position`.
  [[nodiscard]] std::span<const put_message> messages(std::size_t position) const noexcept {
    return std::span{messages_}.subspan(first_[position], first_[position + 1] - first_[position]);
  }
  /// Returns the number of rows to the peer at `position`.
  [[nodiscard]] std::uint32_t rows(std::size_t position) const noexcept { return rows_[position]; }

 private:
  std::vector<put_message> messages_;
  std::vector<std::uint32_t> first_;  ///< [peers + 1]; the first of `messages_` to a peer
  std::vector<std::uint32_t> rows_;   ///< [peers]
};

}  // namespace ep_predict
