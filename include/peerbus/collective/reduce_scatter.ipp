// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include <peerbus/collective/algorithm.hpp>
#include <peerbus/collective/detail/call.hpp>
#include <peerbus/collective/detail/call_header.hpp>
#include <peerbus/collective/detail/divided.hpp>
#include <peerbus/collective/detail/page_exchange.hpp>
#include <peerbus/collective/detail/parts.hpp>
#include <peerbus/collective/reduce_scatter.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::collective::detail {

/// Each rank publishes a part for each peer, and reduces the parts for it.
PEERBUS_INLINE void reduce_scatter_slices(call& scatter, const operands& given,
                                          const reducer& reduce) {
  const std::size_t block = given.output.size();
  const std::size_t step = whole_elements(scatter.slice_bytes(scatter.ranks()), given.element);
  scatter.in_slices(
      block, step,
      [&](std::size_t done, std::size_t bytes) {
        offer_parts(scatter, block, done, bytes);
        scatter.put(part_reach(scatter, bytes));
      },
      [&](std::size_t done, std::size_t bytes) {
        for (const rank_id peer : scatter.peers())
          scatter.sources()[peer.index()] = part_from(scatter, peer, block, done);
        const std::size_t self = scatter.self().index();
        scatter.sources()[self] = given.input.data() + self * block + done;
        reduce_by_lanes(scatter, given, reduce, given.output.data() + done, scatter.sources(),
                        bytes);
      });
}

PEERBUS_INLINE operation reduce_scatter_bytes(team& on, const operands& given,
                                              const reducer& reduce, const call_options& options) {
  const std::size_t block = given.output.size();
  std::string objection = object_to(given, on.rank().index() * block);
  if (given.input.size() / on.size() != block || given.input.size() % on.size() != 0)
    objection = wrong_size("input", given.input_count(), on.size(), given.output_count());
  if (const std::size_t slice = on.map().slice_bytes(on.size());
      whole_elements(slice, given.element) == 0)
    objection = too_large(given.element, slice);
  algorithm by = call::algorithm_of_reduce_scatter(on, given, reduce.name());
  if (by != algorithm::one_shot &&
      whole_slice(by, choice_of::reduce_scatter, on.shape(), given.element.bytes) == 0)
    by = algorithm::one_shot;
  return {on,
          call_header::of("reduce_scatter", given.element, given.output_count())
              .by(reduce.name())
              .at(given.place()),
          given,
          options,
          std::move(objection),
          by == algorithm::ring         ? reduce_scatter_by_ring
          : by == algorithm::two_levels ? reduce_scatter_by_two_levels
                                        : reduce_scatter_slices};
}

}  // namespace peerbus::collective::detail
