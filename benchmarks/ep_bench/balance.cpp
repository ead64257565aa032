// SPDX-License-Identifier: MIT
#include "ep_bench/balance.hpp"

#include <algorithm>
#include <vector>

#include <peerbus/moe/balance.hpp>

#include "ep_bench/gate.hpp"

namespace ep_bench {

options balanced(options chosen, std::size_t ranks) {
  if (chosen.balance == "none") return chosen;
  std::vector<double> loads(chosen.experts);
  const gate all{chosen, ranks};
  for (std::size_t rank = 0; rank < ranks; ++rank)
    for (const std::int32_t expert : all.choose(rank).experts)
      ++loads[static_cast<std::size_t>(expert)];
  const std::size_t per_rank =
      std::min((chosen.experts + ranks - 1) / ranks + chosen.spare, chosen.experts);
  const auto plan =
      chosen.balance == "eplb"
          ? peerbus::moe::plan_eplb(loads, {.slots = ranks * per_rank, .ranks = ranks})
          : peerbus::moe::plan_spread(loads, {.ranks = ranks, .slots_per_rank = per_rank});
  chosen.physical_to_logical.assign(plan.physical_to_logical().begin(),
                                    plan.physical_to_logical().end());
  return chosen;
}

}  // namespace ep_bench
