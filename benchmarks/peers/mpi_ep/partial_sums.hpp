// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include <peerbus/core/bf16.hpp>
#include <peerbus/kernel/kernel_set.hpp>

#include "ep_bench/experts.hpp"
#include "peers/mpi_ep/rank_row.hpp"

namespace mpi_ep {

/// What the experts of a rank leave for a row that several of them read: the weighted sum of their
/// outputs. Not timed, as `ep_bench::expert_work` is not.
class partial_sums {
 public:
  partial_sums(std::size_t hidden, std::size_t most_experts)
      : value_(hidden), outputs_(most_experts * hidden) {}

  /// Writes one row of bf16 to `out`.
  template <class Codec>
  void run(const rank_row_form& form, const std::byte* row, std::size_t first_expert,
           peerbus::bf16* out) noexcept {
    const auto& kernels = peerbus::kernel::best();
    const std::size_t hidden = value_.size();
    std::array<const peerbus::bf16*, 32> results;
    std::array<float, 32> weights;
    const auto chosen = form.chosen(row);
    for (std::size_t c = 0; c < chosen.size(); ++c) {
      const ep_bench::transform apply{
          first_expert + static_cast<std::size_t>(chosen[c].local_expert), hidden};
      const std::size_t left = hidden - apply.rotation;
      Codec{}.decode({row, form.row_bytes}, {row + form.row_bytes, form.scale_bytes}, value_);
      for (float& value : value_) value *= apply.factor;
      peerbus::bf16* const to = outputs_.data() + c * hidden;
      kernels.narrow(value_.data() + apply.rotation, left, to);
      kernels.narrow(value_.data(), apply.rotation, to + left);
      results[c] = to;
      weights[c] = chosen[c].weight;
    }
    kernels.weighted_sum(results.data(), weights.data(), chosen.size(), hidden, out);
  }

 private:
  std::vector<float> value_;
  std::vector<peerbus::bf16> outputs_;
};

}  // namespace mpi_ep
