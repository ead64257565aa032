// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include <peerbus/collective/call_options.hpp>
#include <peerbus/collective/detail/call.hpp>
#include <peerbus/collective/detail/call_header.hpp>
#include <peerbus/collective/detail/operands.hpp>
#include <peerbus/collective/detail/part_exchange.hpp>
#include <peerbus/collective/detail/part_tables.hpp>
#include <peerbus/collective/detail/reducer.hpp>
#include <peerbus/collective/detail/slice_road.hpp>
#include <peerbus/collective/part_layout.hpp>
#include <peerbus/collective/reduce_scatter_v.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::collective::detail {

PEERBUS_INLINE void reduce_scatter_v_bytes(team& on, const operands& given,
                                           const part_layout& parts, const reducer& reduce,
                                           const call_options& options) {
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
  const std::size_t step = whole_elements(on.map().slice_bytes(on.size()), given.element);
  if (step == 0) objection = too_large(given.element, on.map().slice_bytes(on.size()));

  part_exchange scatter{on,
                        call_header::of("reduce_scatter_v", given.element, call_header::varied)
                            .by(reduce.name())
                            .at(given.place()),
                        given,
                        options,
                        std::move(objection),
                        page_layout::parts,
                        step};
  const std::span<const std::byte*> sources = scatter.moves().sources();
  scatter.in_slices([&](std::size_t done) {
    const std::size_t bytes = scatter.bytes_from(on.rank(), done);
    for (const rank_id peer : scatter.moves().peers())
      sources[peer.index()] = scatter.from(peer, done);
    sources[on.rank().index()] = given.input.data() + own.offset + done;
    reduce(given.output.data() + done, sources, bytes / given.element.bytes);
  });
}

}  // namespace peerbus::collective::detail
