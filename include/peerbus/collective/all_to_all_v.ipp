// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include <peerbus/collective/all_to_all_v.hpp>
#include <peerbus/collective/detail/call.hpp>
#include <peerbus/collective/detail/call_header.hpp>
#include <peerbus/collective/detail/page_exchange.hpp>
#include <peerbus/collective/detail/part_exchange.hpp>
#include <peerbus/collective/detail/part_tables.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::collective::detail {

PEERBUS_INLINE operation all_to_all_v_bytes(team& on, const operands& given,
                                            const part_layout& sent, const part_layout& received,
                                            const call_options& options) {
  call::require_ready(on, "all_to_all_v");
  const std::span<byte_range> sends = call::sends(on);
  const std::span<byte_range> receives = call::receives(on);
  std::string objection = lay_out(sends, sent, given.input.size(), given.element, "input");
  if (objection.empty()) objection = lay_out_output(receives, received, given);
  if (objection.empty()) objection = object_to(given, 0);
  const bool is_in_place = !given.output.empty() && given.is_in_place();
  if (objection.empty() && is_in_place && !std::ranges::equal(sends, receives))
    objection = "operands in place whose parts differ, expected equal counts and displacements";

  return {on,
          call_header::of("all_to_all_v", given.element, call_header::varied)
              .at(is_in_place ? operand_place::memory : given.place()),
          given,
          options,
          std::move(objection),
          copy_own_parts};
}

}  // namespace peerbus::collective::detail
