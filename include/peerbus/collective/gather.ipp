// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include <peerbus/collective/detail/call.hpp>
#include <peerbus/collective/detail/call_header.hpp>
#include <peerbus/collective/detail/page_exchange.hpp>
#include <peerbus/collective/detail/reducer.hpp>
#include <peerbus/collective/gather.hpp>
#include <peerbus/core/compiled.hpp>

namespace peerbus::collective::detail {

/// All ranks publish their inputs, and the root copies them.
PEERBUS_INLINE void gather_slices(call& to_root, const operands& given, const reducer&) {
  const rank_id root = to_root.root();
  const bool is_root = to_root.self() == root;
  const std::size_t block = given.input.size();
  to_root.in_slices(
      block, to_root.slice_bytes(1),
      [&](std::size_t done, std::size_t bytes) {
        if (!is_root) to_root.offer(0, done, bytes);
        to_root.put([&](rank_id peer) noexcept { return byte_range{0, peer == root ? bytes : 0}; });
      },
      [&](std::size_t done, std::size_t bytes) {
        if (!is_root) return;
        const auto row = [&](rank_id rank) {
          return given.output.data() + rank.index() * block + done;
        };
        for (const rank_id peer : to_root.peers())
          to_root.copy(row(peer), to_root.slice(peer, 0, done), bytes);
        to_root.copy(row(root), given.input.data() + done, bytes);
      });
}

PEERBUS_INLINE operation gather_bytes(team& on, const operands& given, rank_id root,
                                      const call_options& options) {
  const bool is_root = on.rank() == root;
  const std::size_t block = given.input.size();
  std::string objection =
      object_to(is_root ? given : given.without_output(), on.rank().index() * block);
  if (is_root && (given.output.size() / on.size() != block || given.output.size() % on.size() != 0))
    objection = wrong_size("output", given.output_count(), on.size(), given.input_count());
  if (std::string wrong = object_to_root(on, root); !wrong.empty()) objection = std::move(wrong);
  return {on,
          call_header::of("gather", given.element, given.input_count()).to(root).at(given.place()),
          given,
          options,
          std::move(objection),
          gather_slices};
}

}  // namespace peerbus::collective::detail
