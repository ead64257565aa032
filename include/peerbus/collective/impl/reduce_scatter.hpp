// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>

#include <peerbus/collective/call_options.hpp>
#include <peerbus/collective/detail/call.hpp>
#include <peerbus/collective/detail/call_header.hpp>
#include <peerbus/collective/detail/operands.hpp>
#include <peerbus/collective/detail/parts.hpp>
#include <peerbus/collective/detail/reducer.hpp>
#include <peerbus/collective/detail/slice_road.hpp>
#include <peerbus/collective/reduce_scatter.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::collective::detail {

PEERBUS_INLINE void reduce_scatter_bytes(team& on, const operands& given, const reducer& reduce,
                                         const call_options& options) {
  const std::size_t block = given.output.size();
  std::string objection = object_to(given, on.rank().index() * block);
  if (given.input.size() / on.size() != block || given.input.size() % on.size() != 0)
    objection = wrong_size("input", given.input_count(), on.size(), given.output_count());
  const std::size_t step = whole_elements(on.map().slice_bytes(on.size()), given.element);
  if (step == 0) objection = too_large(given.element, on.map().slice_bytes(on.size()));

  call scatter{on,
               call_header::of("reduce_scatter", given.element, given.output_count())
                   .by(reduce.name())
                   .at(given.place()),
               given, options, objection};
  const std::byte* const own = given.input.data() + scatter.self().index() * block;
  scatter.in_slices(block, step, [&](std::size_t done, std::size_t bytes) {
    offer_parts(scatter, block, done, bytes);
    scatter.meet(part_reach(scatter, bytes));
    for (const rank_id peer : scatter.peers())
      scatter.sources()[peer.index()] = part_from(scatter, peer, block, done);
    scatter.sources()[scatter.self().index()] = own + done;
    reduce(given.output.data() + done, scatter.sources(), bytes / given.element.bytes);
  });
}

}  // namespace peerbus::collective::detail
