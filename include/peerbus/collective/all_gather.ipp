// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include <peerbus/collective/algorithm.hpp>
#include <peerbus/collective/all_gather.hpp>
#include <peerbus/collective/detail/call.hpp>
#include <peerbus/collective/detail/call_header.hpp>
#include <peerbus/collective/detail/doubling.hpp>
#include <peerbus/collective/detail/page_exchange.hpp>
#include <peerbus/collective/detail/reducer.hpp>
#include <peerbus/collective/detail/two_level_gather.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::collective::detail {

/// Each rank publishes its input, and copies that of all ranks.
PEERBUS_INLINE void all_gather_slices(call& gather, const operands& given, const reducer&) {
  const std::size_t block = given.input.size();
  gather.in_slices(
      block, gather.slice_bytes(1),
      [&](std::size_t done, std::size_t bytes) {
        gather.offer(0, done, bytes);
        gather.put([bytes](rank_id) noexcept { return byte_range{0, bytes}; });
      },
      [&](std::size_t done, std::size_t bytes) {
        const auto row = [&](rank_id rank) {
          return given.output.data() + rank.index() * block + done;
        };
        for (const rank_id peer : gather.peers())
          gather.copy(row(peer), gather.slice(peer, 0, done), bytes);
        gather.copy(row(gather.self()), given.input.data() + done, bytes);
      });
}

PEERBUS_INLINE operation all_gather_bytes(team& on, const operands& given,
                                          const call_options& options) {
  const std::size_t block = given.input.size();
  std::string objection = object_to(given, on.rank().index() * block);
  if (given.output.size() / on.size() != block || given.output.size() % on.size() != 0)
    objection = wrong_size("output", given.output_count(), on.size(), given.input_count());
  const algorithm by = on.algorithm_of(choice_of::all_gather, block);
  return {on,
          call_header::of("all_gather", given.element, given.input_count()).at(given.place()),
          given,
          options,
          std::move(objection),
          by == algorithm::doubling     ? all_gather_by_doubling
          : by == algorithm::two_levels ? all_gather_by_two_levels
                                        : all_gather_slices};
}

}  // namespace peerbus::collective::detail
