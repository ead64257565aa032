// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>

#include <peerbus/collective/algorithm.hpp>
#include <peerbus/collective/all_gather.hpp>
#include <peerbus/collective/call_options.hpp>
#include <peerbus/collective/detail/call.hpp>
#include <peerbus/collective/detail/call_header.hpp>
#include <peerbus/collective/detail/copy.hpp>
#include <peerbus/collective/detail/doubling.hpp>
#include <peerbus/collective/detail/operands.hpp>
#include <peerbus/collective/detail/slice_road.hpp>
#include <peerbus/collective/detail/two_level_gather.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::collective::detail {

PEERBUS_INLINE void all_gather_bytes(team& on, const operands& given, const call_options& options) {
  const std::size_t block = given.input.size();
  std::string objection = object_to(given, on.rank().index() * block);
  if (given.output.size() / on.size() != block || given.output.size() % on.size() != 0)
    objection = wrong_size("output", given.output_count(), on.size(), given.input_count());

  call gather{on,
              call_header::of("all_gather", given.element, given.input_count()).at(given.place()),
              given, options, objection};
  const algorithm by = on.algorithm_of(choice_of::all_gather, block);
  if (by != algorithm::one_shot) {
    const std::size_t slice = slice_of(by, choice_of::all_gather, on.shape());
    (by == algorithm::doubling ? all_gather_by_doubling : all_gather_by_two_levels)(gather, given,
                                                                                    slice);
    return;
  }
  gather.in_slices(block, gather.slice_bytes(1), [&](std::size_t done, std::size_t bytes) {
    gather.offer(0, done, bytes);
    gather.meet([bytes](rank_id) noexcept { return byte_range{0, bytes}; });
    for (const rank_id peer : gather.peers())
      copy_bytes(given.output.data() + peer.index() * block + done, gather.slice(peer, 0, done),
                 bytes);
  });
  copy_bytes(given.output.data() + gather.self().index() * block, given.input.data(), block);
}

}  // namespace peerbus::collective::detail
