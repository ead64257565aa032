// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include <peerbus/collective/detail/call.hpp>
#include <peerbus/collective/detail/copy.hpp>
#include <peerbus/collective/detail/slice_road.hpp>
#include <peerbus/core/rank.hpp>

/// Pages with a part for each rank: the part for rank `r` begins at `r` times the largest slice of
/// such a page.
namespace peerbus::collective::detail {

/// Copies `bytes` bytes for each peer to the next page. `input` is where those for rank 0 begin,
/// and those for each further rank begin `block` bytes after.
inline void write_parts(call& to, const std::byte* input, std::size_t block,
                        std::size_t bytes) noexcept {
  const std::size_t stride = to.slice_bytes(to.ranks());
  for (const rank_id peer : to.peers())
    copy_bytes(to.page() + peer.index() * stride, input + peer.index() * block, bytes);
}

/// Returns the `reach` of a page whose parts have `bytes` bytes.
inline auto part_reach(const call& to, std::size_t bytes) noexcept {
  return [stride = to.slice_bytes(to.ranks()), bytes](rank_id peer) noexcept {
    return byte_range{peer.index() * stride, bytes};
  };
}

/// Returns the part for this rank that `peer` published in the latest round.
inline const std::byte* part_from(const call& to, rank_id peer) noexcept {
  return to.slice(peer, to.self().index() * to.slice_bytes(to.ranks()));
}

}  // namespace peerbus::collective::detail
