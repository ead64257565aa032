// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include <peerbus/collective/all_to_all.hpp>
#include <peerbus/collective/detail/call.hpp>
#include <peerbus/collective/detail/call_header.hpp>
#include <peerbus/collective/detail/page_exchange.hpp>
#include <peerbus/collective/detail/parts.hpp>
#include <peerbus/collective/detail/reducer.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::collective::detail {

/// Each rank publishes a part for each peer, and copies the parts for it.
PEERBUS_INLINE void all_to_all_slices(call& exchange, const operands& given, const reducer&) {
  const std::size_t block = given.input.size() / exchange.ranks();
  exchange.in_slices(
      block, exchange.slice_bytes(exchange.ranks()),
      [&](std::size_t done, std::size_t bytes) {
        offer_parts(exchange, block, done, bytes);
        exchange.put(part_reach(exchange, bytes));
      },
      [&](std::size_t done, std::size_t bytes) {
        const auto row = [&](rank_id rank) {
          return given.output.data() + rank.index() * block + done;
        };
        for (const rank_id peer : exchange.peers())
          exchange.copy(row(peer), part_from(exchange, peer, block, done), bytes);
        const rank_id self = exchange.self();
        exchange.copy(row(self), given.input.data() + self.index() * block + done, bytes);
      });
}

PEERBUS_INLINE operation all_to_all_bytes(team& on, const operands& given,
                                          const call_options& options) {
  std::string objection = object_to(given, 0);
  if (given.input.size() != given.output.size())
    objection = wrong_size("output", given.output_count(), 1, given.input_count());
  if (given.input_count() % on.size() != 0)
    objection = indivisible("input", given.input_count(), on.size());
  return {on,
          call_header::of("all_to_all", given.element, given.input_count() / on.size())
              .at(given.is_in_place() ? operand_place::memory : given.place()),
          given,
          options,
          std::move(objection),
          all_to_all_slices};
}

}  // namespace peerbus::collective::detail
