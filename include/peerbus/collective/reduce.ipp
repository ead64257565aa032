// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include <peerbus/collective/detail/call.hpp>
#include <peerbus/collective/detail/call_header.hpp>
#include <peerbus/collective/detail/page_exchange.hpp>
#include <peerbus/collective/detail/parts.hpp>
#include <peerbus/collective/reduce.hpp>
#include <peerbus/core/compiled.hpp>

namespace peerbus::collective::detail {

/// All ranks publish their inputs, and the root reduces them.
PEERBUS_INLINE void reduce_slices(call& to_root, const operands& given, const reducer& reduce) {
  const rank_id root = to_root.root();
  const bool is_root = to_root.self() == root;
  const std::size_t step = whole_elements(to_root.slice_bytes(1), given.element);
  to_root.in_slices(
      given.input.size(), step,
      [&](std::size_t done, std::size_t bytes) {
        if (!is_root) to_root.offer(0, done, bytes);
        to_root.put([&](rank_id peer) noexcept { return byte_range{0, peer == root ? bytes : 0}; });
      },
      [&](std::size_t done, std::size_t bytes) {
        if (!is_root) return;
        for (const rank_id peer : to_root.peers())
          to_root.sources()[peer.index()] = to_root.slice(peer, 0, done);
        to_root.sources()[root.index()] = given.input.data() + done;
        reduce_by_lanes(to_root, given, reduce, given.output.data() + done, to_root.sources(),
                        bytes);
      });
}

PEERBUS_INLINE operation reduce_bytes(team& on, const operands& given, const reducer& reduce,
                                      rank_id root, const call_options& options) {
  const bool is_root = on.rank() == root;
  std::string objection = object_to(is_root ? given : given.without_output(), 0);
  if (is_root && given.output.size() != given.input.size())
    objection = wrong_size("output", given.output_count(), 1, given.input_count());
  if (std::string wrong = object_to_root(on, root); !wrong.empty()) objection = std::move(wrong);
  if (const std::size_t slice = on.map().slice_bytes(1); whole_elements(slice, given.element) == 0)
    objection = too_large(given.element, slice);
  return {on,
          call_header::of("reduce", given.element, given.input_count())
              .by(reduce.name())
              .to(root)
              .at(given.place()),
          given,
          options,
          std::move(objection),
          reduce_slices};
}

}  // namespace peerbus::collective::detail
