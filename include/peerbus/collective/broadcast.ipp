// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include <peerbus/collective/algorithm.hpp>
#include <peerbus/collective/broadcast.hpp>
#include <peerbus/collective/detail/call.hpp>
#include <peerbus/collective/detail/call_header.hpp>
#include <peerbus/collective/detail/page_exchange.hpp>
#include <peerbus/collective/detail/reducer.hpp>
#include <peerbus/collective/detail/two_level_gather.hpp>
#include <peerbus/core/compiled.hpp>

namespace peerbus::collective::detail {

/// The root publishes the data, and all others copy it.
PEERBUS_INLINE void broadcast_slices(call& broadcast, const operands& given, const reducer&) {
  const bool is_root = broadcast.self() == broadcast.root();
  broadcast.in_slices(
      given.output.size(), broadcast.slice_bytes(1),
      [&](std::size_t done, std::size_t bytes) {
        if (is_root) broadcast.offer(0, done, bytes);
        broadcast.put([&](rank_id) noexcept { return byte_range{0, is_root ? bytes : 0}; });
      },
      [&](std::size_t done, std::size_t bytes) {
        if (!is_root)
          broadcast.copy(given.output.data() + done, broadcast.slice(broadcast.root(), 0, done),
                         bytes);
      });
}

PEERBUS_INLINE operation broadcast_bytes(team& on, const operands& given, rank_id root,
                                         const call_options& options) {
  std::string objection = object_to(given, 0);
  if (std::string wrong = object_to_root(on, root); !wrong.empty()) objection = std::move(wrong);
  const bool by_levels =
      on.algorithm_of(choice_of::broadcast, given.output.size()) == algorithm::two_levels;
  return {
      on,
      call_header::of("broadcast", given.element, given.output_count()).to(root).at(given.place()),
      given,
      options,
      std::move(objection),
      by_levels ? broadcast_by_two_levels : broadcast_slices};
}

}  // namespace peerbus::collective::detail
