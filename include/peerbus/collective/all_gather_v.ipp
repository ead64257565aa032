// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include <peerbus/collective/all_gather_v.hpp>
#include <peerbus/collective/detail/call.hpp>
#include <peerbus/collective/detail/call_header.hpp>
#include <peerbus/collective/detail/page_exchange.hpp>
#include <peerbus/collective/detail/part_exchange.hpp>
#include <peerbus/collective/detail/part_tables.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::collective::detail {

PEERBUS_INLINE operation all_gather_v_bytes(team& on, const operands& given,
                                            const part_layout& parts, const call_options& options) {
  call::require_ready(on, "all_gather_v");
  const std::span<byte_range> receives = call::receives(on);
  std::string objection = lay_out_output(receives, parts, given);
  if (objection.empty()) {
    const byte_range& own = receives[on.rank().index()];
    objection = object_to(given, own.offset);
    if (given.input.size() != own.bytes)
      objection =
          wrong_part("input", given.input_count(), on.rank(), own.bytes / given.element.bytes);
  }
  std::ranges::fill(call::sends(on), byte_range{0, given.input.size()});

  return {on,
          call_header::of("all_gather_v", given.element, call_header::varied).at(given.place()),
          given,
          options,
          std::move(objection),
          copy_shared_parts};
}

}  // namespace peerbus::collective::detail
