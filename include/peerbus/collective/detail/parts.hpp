// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include <peerbus/collective/detail/call_rounds.hpp>
#include <peerbus/collective/detail/page_exchange.hpp>
#include <peerbus/core/rank.hpp>

/// Pages with a part for each rank: the part for rank `r` begins at `r` times
/// `call_rounds::part_stride`.
namespace peerbus::collective::detail {

/// Offers `bytes` bytes of each peer's row of the input, from byte `done` of the row on.
/// `row_bytes` is the size of a row.
inline void offer_parts(call_rounds& rounds, std::size_t row_bytes, std::size_t done,
                        std::size_t bytes) noexcept {
  const std::size_t stride = rounds.part_stride();
  for (const rank_id peer : rounds.peers())
    rounds.offer(peer.index() * stride, peer.index() * row_bytes + done, bytes);
}

/// Returns the bytes that `peer` offered in the latest round of this rank's row, from byte `done`
/// of the row on.
inline const std::byte* part_from(const call_rounds& rounds, rank_id peer, std::size_t row_bytes,
                                  std::size_t done) noexcept {
  return rounds.slice(peer, rounds.self().index() * rounds.part_stride(),
                      rounds.self().index() * row_bytes + done);
}

}  // namespace peerbus::collective::detail
