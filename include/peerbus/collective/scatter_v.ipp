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
#include <peerbus/collective/scatter_v.hpp>
#include <peerbus/core/compiled.hpp>

namespace peerbus::collective::detail {

PEERBUS_INLINE operation scatter_v_bytes(team& on, const operands& given, const part_layout& parts,
                                         rank_id root, const call_options& options) {
  call::require_ready(on, "scatter_v");
  const bool is_root = on.rank() == root;
  const std::span<byte_range> sends = call::sends(on);
  const std::span<byte_range> receives = call::receives(on);
  std::ranges::fill(sends, byte_range{});
  std::ranges::fill(receives, byte_range{});
  std::string objection = object_to_root(on, root);
  if (objection.empty()) {
    receives[root.index()] = {0, given.output.size()};
    if (is_root) objection = lay_out(sends, parts, given.input.size(), given.element, "input");
  }
  if (objection.empty())
    objection = object_to(is_root ? given : given.without_input(), sends[root.index()].offset);
  const std::size_t own = sends[on.rank().index()].bytes;
  if (objection.empty() && is_root && given.output.size() != own)
    objection = wrong_part("output", given.output_count(), root, own / given.element.bytes);

  return {
      on,
      call_header::of("scatter_v", given.element, call_header::varied).to(root).at(given.place()),
      given,
      options,
      std::move(objection),
      copy_own_parts};
}

}  // namespace peerbus::collective::detail
