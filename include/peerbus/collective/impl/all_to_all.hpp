// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>

#include <peerbus/collective/all_to_all.hpp>
#include <peerbus/collective/call_options.hpp>
#include <peerbus/collective/detail/call.hpp>
#include <peerbus/collective/detail/call_header.hpp>
#include <peerbus/collective/detail/copy.hpp>
#include <peerbus/collective/detail/operands.hpp>
#include <peerbus/collective/detail/parts.hpp>
#include <peerbus/collective/detail/slice_road.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::collective::detail {

PEERBUS_INLINE void all_to_all_bytes(team& on, const operands& given, const call_options& options) {
  const std::size_t block = given.input.size() / on.size();
  std::string objection = object_to(given, 0);
  if (given.input.size() != given.output.size())
    objection = wrong_size("output", given.output_count(), 1, given.input_count());
  if (given.input_count() % on.size() != 0)
    objection = indivisible("input", given.input_count(), on.size());

  call exchange{on,
                call_header::of("all_to_all", given.element, given.input_count() / on.size())
                    .at(given.is_in_place() ? operand_place::memory : given.place()),
                given, options, objection};
  const std::size_t own = exchange.self().index() * block;
  exchange.in_slices(block, exchange.slice_bytes(on.size()),
                     [&](std::size_t done, std::size_t bytes) {
                       offer_parts(exchange, block, done, bytes);
                       exchange.meet(part_reach(exchange, bytes));
                       for (const rank_id peer : exchange.peers())
                         copy_bytes(given.output.data() + peer.index() * block + done,
                                    part_from(exchange, peer, block, done), bytes);
                     });
  copy_bytes(given.output.data() + own, given.input.data() + own, block);
}

}  // namespace peerbus::collective::detail
