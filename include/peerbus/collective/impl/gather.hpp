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
#include <peerbus/collective/detail/slice_road.hpp>
#include <peerbus/collective/gather.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::collective::detail {

PEERBUS_INLINE void gather_bytes(team& on, const operands& given, rank_id root,
                                 const call_options& options) {
  const bool is_root = on.rank() == root;
  const std::size_t block = given.input.size();
  std::string objection =
      object_to(is_root ? given : given.without_output(), on.rank().index() * block);
  if (is_root && (given.output.size() / on.size() != block || given.output.size() % on.size() != 0))
    objection = wrong_size("output", given.output_count(), on.size(), given.input_count());
  if (std::string wrong = object_to_root(on, root); !wrong.empty()) objection = std::move(wrong);

  call to_root{
      on, call_header::of("gather", given.element, given.input_count()).to(root).at(given.place()),
      given, options, objection};
  to_root.in_slices(block, to_root.slice_bytes(1), [&](std::size_t done, std::size_t bytes) {
    if (!is_root) to_root.offer(0, done, bytes);
    to_root.meet([&](rank_id peer) noexcept { return byte_range{0, peer == root ? bytes : 0}; });
    if (!is_root) return;
    for (const rank_id peer : to_root.peers())
      copy_bytes(given.output.data() + peer.index() * block + done, to_root.slice(peer, 0, done),
                 bytes);
  });
  if (is_root) copy_bytes(given.output.data() + root.index() * block, given.input.data(), block);
}

}  // namespace peerbus::collective::detail
