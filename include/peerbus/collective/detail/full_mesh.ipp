// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include <peerbus/collective/detail/by_lanes.hpp>
#include <peerbus/collective/detail/full_mesh.hpp>
#include <peerbus/collective/detail/operands.hpp>
#include <peerbus/collective/detail/page_exchange.hpp>
#include <peerbus/collective/detail/parts.hpp>
#include <peerbus/collective/detail/pattern.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::collective::detail {

PEERBUS_INLINE void full_mesh(call_rounds& all, const request& given, const reducer& reduce) {
  const pattern& kind = pattern_of(given.what);
  const rank_id self = all.self();
  const rank_id root = all.root();
  const bool gives = kind.gives(self == root);
  const bool takes = kind.takes(self == root);
  // A root that takes alone reads its own input where it lies.
  const bool publishes = gives && !(kind.one_takes && takes);
  const std::size_t block = block_bytes(kind, given, all.ranks());
  std::size_t step = all.slice_bytes(kind.input_rows ? all.ranks() : 1);
  if (kind.reduces) step = whole_elements(step, given.element);

  const auto publish = [&](std::size_t done, std::size_t bytes) {
    if (publishes && kind.input_rows)
      offer_parts(all, block, done, bytes);
    else if (publishes)
      all.offer(0, done, bytes);
    const std::size_t stride = kind.input_rows ? all.part_stride() : 0;
    all.put([&](rank_id peer) noexcept {
      const bool reads = publishes && (!kind.one_takes || peer == root);
      return byte_range{peer.index() * stride, reads ? bytes : 0};
    });
  };
  const auto take = [&](std::size_t done, std::size_t bytes) {
    if (!takes) return;
    const auto from = [&](rank_id peer) noexcept {
      return kind.input_rows ? part_from(all, peer, block, done) : all.slice(peer, 0, done);
    };
    const auto own = [&]() noexcept {  // The input is null where this rank gives nothing.
      return given.input.data() + (kind.input_rows ? self.index() * block : 0) + done;
    };
    const auto row = [&](rank_id rank) noexcept {
      return given.output.data() + (kind.output_rows ? rank.index() * block : 0) + done;
    };
    if (kind.reduces) {
      for (const rank_id peer : all.peers()) all.sources()[peer.index()] = from(peer);
      all.sources()[self.index()] = own();
      return reduce_by_lanes(all, given, reduce, row(self), all.sources(), bytes);
    }
    if (kind.one_gives && !gives) return all.read(row(self), root, from(root), bytes);
    if (!kind.one_gives)
      for (const rank_id peer : all.peers()) all.read(row(peer), peer, from(peer), bytes);
    if (row(self) != own()) all.copy(row(self), own(), bytes);
  };
  all.in_slices(block, step, publish, take);
}

}  // namespace peerbus::collective::detail
