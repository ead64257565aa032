// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>

#include <peerbus/compat/deep_ep/argument.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/received.hpp>

namespace peerbus::deep_ep::detail {

/// Requires that all ranks gave handles of the same dispatch, or no handle, to the dispatch
/// `dispatched`. The note of each rank begins with the number of the call that made its handle, or
/// with 0, so that all ranks know the numbers of all ranks.
/// Throws, on all ranks: `error` mismatch that names the first rank with another handle.
template <class Exchange>
void require_one_plan(Exchange& moe, const moe::ticket& dispatched, all_ranks ranks) {
  const auto plan_of = [&](rank_id source) {
    return moe.template note<std::uint64_t>(dispatched, source).front();
  };
  const auto text_of = [](std::uint64_t plan) {
    return plan == 0 ? std::string{"none"}
                     : peerbus::detail::concat("of call ", plan, " of the buffer");
  };
  const std::uint64_t first = plan_of(rank_id{0});
  for (const rank_id source : ranks)
    if (const std::uint64_t plan = plan_of(source); plan != first)
      argument{"dispatch", "handle"}.refuse(errc::mismatch, "is ", text_of(first), " on ",
                                            rank_id{0}, " but ", text_of(plan), " on ", source,
                                            ", expected the same on all ranks");
}

}  // namespace peerbus::deep_ep::detail
