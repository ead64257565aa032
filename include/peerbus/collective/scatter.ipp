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
#include <peerbus/collective/detail/reducer.hpp>
#include <peerbus/collective/scatter.hpp>
#include <peerbus/core/compiled.hpp>

namespace peerbus::collective::detail {

/// The root publishes a part for each rank, and each rank copies its part.
PEERBUS_INLINE void scatter_slices(call& from_root, const operands& given, const reducer&) {
  const rank_id root = from_root.root();
  const bool is_root = from_root.self() == root;
  const std::size_t block = given.output.size();
  from_root.in_slices(
      block, from_root.slice_bytes(from_root.ranks()),
      [&](std::size_t done, std::size_t bytes) {
        if (is_root) offer_parts(from_root, block, done, bytes);
        from_root.put(part_reach(from_root, is_root ? bytes : 0));
      },
      [&](std::size_t done, std::size_t bytes) {
        const std::byte* const part = is_root ? given.input.data() + root.index() * block + done
                                              : part_from(from_root, root, block, done);
        from_root.copy(given.output.data() + done, part, bytes);
      });
}

PEERBUS_INLINE operation scatter_bytes(team& on, const operands& given, rank_id root,
                                       const call_options& options) {
  const bool is_root = on.rank() == root;
  const std::size_t block = given.output.size();
  std::string objection =
      object_to(is_root ? given : given.without_input(), on.rank().index() * block);
  if (is_root && (given.input.size() / on.size() != block || given.input.size() % on.size() != 0))
    objection = wrong_size("input", given.input_count(), on.size(), given.output_count());
  if (std::string wrong = object_to_root(on, root); !wrong.empty()) objection = std::move(wrong);
  return {
      on,
      call_header::of("scatter", given.element, given.output_count()).to(root).at(given.place()),
      given,
      options,
      std::move(objection),
      scatter_slices};
}

}  // namespace peerbus::collective::detail
