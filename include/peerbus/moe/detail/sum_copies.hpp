// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>

#include <peerbus/core/bf16.hpp>
#include <peerbus/kernel/kernel_set.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/plan.hpp>

namespace peerbus::moe::detail {

/// out[t] = the sum over token t's copies, in slot order, of weight times output, in f32; the one
/// definition of combine's arithmetic, whichever road the outputs took. `output_of(t, k)` points to
/// the `hidden` values of the copy in slot k of token t.
template <class OutputOf>
void sum_copies(const dispatch_plan& plan, std::size_t hidden, std::span<bf16> out,
                OutputOf&& output_of) noexcept {
  const kernel::kernel_set& kernels = kernel::best();
  for (std::size_t t = 0; t < plan.tokens(); ++t) {
    const bf16* rows[max_top_k];
    float weights[max_top_k];
    std::size_t count = 0;
    const auto places = plan.places(t);
    for (std::size_t k = 0; k < places.size(); ++k) {
      if (!places[k].sent()) continue;
      rows[count] = output_of(t, k);
      weights[count++] = plan.weights(t)[k];
    }
    kernels.weighted_sum(rows, weights, count, hidden, out.data() + t * hidden);
  }
}

}  // namespace peerbus::moe::detail
