// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>

#include <peerbus/core/bf16.hpp>
#include <peerbus/kernel/kernel_set.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/lane.hpp>
#include <peerbus/moe/plan.hpp>

namespace peerbus::moe::detail {

/// out[t] = the sum over token t's copies, in order, of factor times output, in f32, for the lane's
/// share of the tokens; the one definition of combine's arithmetic, whichever road the outputs
/// took. `output_of(t, i)` points to the `hidden` values of copy i of token t.
template <class OutputOf>
void sum_copies(const dispatch_plan& plan, std::size_t hidden, std::span<bf16> out, lane as,
                OutputOf&& output_of) noexcept {
  const kernel::kernel_set& kernels = kernel::best();
  const lane::range mine = as.share(plan.tokens());
  for (std::size_t t = mine.begin; t < mine.end; ++t) {
    const bf16* rows[max_top_k];
    float factors[max_top_k];
    std::size_t count = 0;
    const auto places = plan.places(t);
    for (std::size_t i = 0; i < places.size(); ++i) {
      if (!places[i].sent()) continue;
      rows[count] = output_of(t, i);
      factors[count++] = plan.factors(t)[i];
    }
    kernels.weighted_sum(rows, factors, count, hidden, out.data() + t * hidden);
  }
}

}  // namespace peerbus::moe::detail
