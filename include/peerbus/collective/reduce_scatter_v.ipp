// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include <peerbus/collective/detail/call.hpp>
#include <peerbus/collective/detail/call_header.hpp>
#include <peerbus/collective/detail/page_exchange.hpp>
#include <peerbus/collective/detail/part_exchange.hpp>
#include <peerbus/collective/detail/part_tables.hpp>
#include <peerbus/collective/reduce_scatter_v.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::collective::detail {

/// Each rank publishes a part for each peer, and reduces the parts for it.
PEERBUS_INLINE void reduce_parts(call& moves, const operands& given, const reducer& reduce) {
  const std::size_t step = whole_elements(moves.slice_bytes(moves.ranks()), given.element);
  part_exchange scatter{moves, given, page_layout::parts, step};
  if (!scatter.compare()) return;
  const rank_id self = moves.self();
  const std::size_t own_at = moves.sends()[self.index()].offset;
  const std::span<const std::byte*> sources = moves.sources();
  scatter.in_slices([&](std::size_t done) {
    const std::size_t bytes = scatter.bytes_from(self, done);
    if (bytes == 0) return;  // The output may be null.
    for (const rank_id peer : moves.peers()) sources[peer.index()] = scatter.from(peer, done);
    sources[self.index()] = given.input.data() + own_at + done;
    reduce_by_lanes(moves, given, reduce, given.output.data() + done, sources, bytes);
  });
}

PEERBUS_INLINE operation reduce_scatter_v_bytes(team& on, const operands& given,
                                                const part_layout& parts, const reducer& reduce,
                                                const call_options& options) {
  call::require_ready(on, "reduce_scatter_v");
  const std::span<byte_range> sends = call::sends(on);
  std::string objection = lay_out(sends, parts, given.input.size(), given.element, "input");
  const byte_range& own = sends[on.rank().index()];
  // In place, a part that overlaps the own one would be read after the output is written.
  if (objection.empty() && !are_apart(given.input, given.output))
    objection = object_to_overlap(sends, given.element, "input");
  if (objection.empty()) {
    objection = object_to(given, own.offset);
    if (given.output.size() != own.bytes)
      objection =
          wrong_part("output", given.output_count(), on.rank(), own.bytes / given.element.bytes);
  }
  std::ranges::fill(call::receives(on), byte_range{0, given.output.size()});
  if (const std::size_t slice = on.map().slice_bytes(on.size());
      whole_elements(slice, given.element) == 0)
    objection = too_large(given.element, slice);

  return {on,
          call_header::of("reduce_scatter_v", given.element, call_header::varied)
              .by(reduce.name())
              .at(given.place()),
          given,
          options,
          std::move(objection),
          reduce_parts};
}

}  // namespace peerbus::collective::detail
