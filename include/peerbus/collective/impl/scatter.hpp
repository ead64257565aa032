// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include <peerbus/collective/call_options.hpp>
#include <peerbus/collective/detail/call.hpp>
#include <peerbus/collective/detail/call_header.hpp>
#include <peerbus/collective/detail/copy.hpp>
#include <peerbus/collective/detail/operands.hpp>
#include <peerbus/collective/detail/parts.hpp>
#include <peerbus/collective/detail/slice_road.hpp>
#include <peerbus/collective/scatter.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::collective::detail {

PEERBUS_INLINE void scatter_bytes(team& on, const operands& given, rank_id root,
                                  const call_options& options) {
  const bool is_root = on.rank() == root;
  const std::size_t block = given.output.size();
  std::string objection =
      object_to(is_root ? given : given.without_input(), on.rank().index() * block);
  if (is_root && (given.input.size() / on.size() != block || given.input.size() % on.size() != 0))
    objection = wrong_size("input", given.input_count(), on.size(), given.output_count());
  if (std::string wrong = object_to_root(on, root); !wrong.empty()) objection = std::move(wrong);

  call from_root{
      on,
      call_header::of("scatter", given.element, given.output_count()).to(root).at(given.place()),
      given, options, objection};
  from_root.in_slices(
      block, from_root.slice_bytes(on.size()), [&](std::size_t done, std::size_t bytes) {
        if (is_root) offer_parts(from_root, block, done, bytes);
        from_root.meet(part_reach(from_root, is_root ? bytes : 0));
        if (!is_root)
          copy_bytes(given.output.data() + done, part_from(from_root, root, block, done), bytes);
      });
  if (is_root) copy_bytes(given.output.data(), given.input.data() + root.index() * block, block);
}

}  // namespace peerbus::collective::detail
