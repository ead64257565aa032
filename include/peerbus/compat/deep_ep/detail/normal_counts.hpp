// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include <peerbus/compat/deep_ep/argument.hpp>
#include <peerbus/compat/deep_ep/detail/normal_routing.hpp>
#include <peerbus/compat/deep_ep/normal.hpp>

namespace peerbus::deep_ep::detail {

/// Requires that `num_tokens_per_rank` equals the counts of the routing.
/// Throws: `error` invalid_argument.
inline void check_per_rank(const dispatch_args& args, const normal_routing& routing) {
  const argument per_rank{"dispatch", "num_tokens_per_rank"};
  for (std::size_t r = 0; r < routing.per_rank.size(); ++r) {
    const std::int32_t given = args.num_tokens_per_rank.as<std::int32_t>()[r];
    per_rank.require(given == routing.per_rank[r], "is ", given, " for rank ", r, ", expected ",
                     routing.per_rank[r], " by the routing");
  }
}

/// Requires that `num_tokens_per_expert` equals the counts of the routing.
/// Throws: `error` invalid_argument.
inline void check_per_expert(const dispatch_args& args, normal_routing& routing) {
  const argument per_expert{"dispatch", "num_tokens_per_expert"};
  routing.count_experts();
  for (std::size_t e = 0; e < routing.experts; ++e) {
    const std::int32_t given = args.num_tokens_per_expert.as<std::int32_t>()[e];
    per_expert.require(given == routing.per_expert[e], "is ", given, " for expert ", e,
                       ", expected ", routing.per_expert[e], " by topk_idx");
  }
}

}  // namespace peerbus::deep_ep::detail
