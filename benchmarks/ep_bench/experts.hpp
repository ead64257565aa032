// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <peerbus/core/bf16.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/read_once.hpp>
#include <peerbus/kernel/kernel_set.hpp>
#include <peerbus/moe/config.hpp>

#include "support/pages.hpp"

namespace ep_bench {

/// What an expert does to its rows: it multiplies them by a factor and rotates their columns, which
/// no two of 128 x hidden experts do alike, so that a row at the wrong expert cannot pass.
/// Multiplication alone rounds in one way only, whatever instructions the compiler takes.
struct transform {
  float factor;
  std::size_t rotation;

  transform(std::size_t expert, std::size_t hidden) noexcept
      : factor{1.0F + static_cast<float>(expert % 128) / 128.0F}, rotation{expert / 128 % hidden} {}
};

/// Calls `by_expert(id, rows)` for all rows of each expert of a rank, in as many parts as the
/// layout has, or in a layout by rank `by_token(rows)`.
template <class Received, class ByExpert, class ByToken>
void visit_rows(const Received& received, ByExpert&& by_expert, ByToken&& by_token) {
  if constexpr (requires { received.rows_from(0, peerbus::rank_id{0}); }) {
    for (std::size_t e = 0; e < received.local_experts(); ++e)
      for (const peerbus::rank_id source : peerbus::all_ranks{received.ranks()})
        by_expert(received.expert_id(e), received.rows_from(e, source));
  } else if constexpr (requires { received.rows_from(peerbus::rank_id{0}); }) {
    for (const peerbus::rank_id source : peerbus::all_ranks{received.ranks()})
      by_token(received.rows_from(source));
  } else if constexpr (requires { received.local_experts(); }) {
    by_token(received);
  } else {
    for (const auto& expert : received.experts()) by_expert(expert.id(), expert);
  }
}

/// Reads every cache line of the rows that a rank has received, with their scales, as the matrix
/// products of its experts do.
template <class Received>
void read_rows(const Received& received) noexcept {
  const auto read = [](const auto& rows) {
    for (std::size_t i = 0; i < rows.count(); ++i) peerbus::read_once(std::as_bytes(rows.row(i)));
    peerbus::read_once(std::as_bytes(rows.scales()));
  };
  visit_rows(received, [&](std::size_t, const auto& rows) { read(rows); }, read);
}

/// All experts of a rank, as fast as the machine allows; not timed, but part of every iteration, so
/// that outputs are as fresh as those of real experts when they are combined.
class expert_work {
 public:
  explicit expert_work(std::size_t hidden) : row_(hidden) {}

  /// Each row's output is what its expert makes of it; in a layout by rank it is the weighted sum
  /// of what its experts make of it, each rounded to bf16, in the order of its slots.
  template <class Received>
  void run(const Received& received) noexcept {
    visit_rows(
        received, [&](std::size_t expert, const auto& rows) { transform_rows(expert, rows); },
        [&](const auto& rows) { sum_by_token(rows, received); });
  }

 private:
  template <class Rows>
  void transform_rows(std::size_t expert, const Rows& rows) noexcept {
    const transform apply{expert, row_.size()};
    for (std::size_t i = 0; i < rows.count(); ++i) {
      rows.decode(i, row_);
      for (float& value : row_) value *= apply.factor;
      rotate(apply, rows.output(i).data());
    }
  }

  /// `index` has the slots of the rows, which it numbers through all rows of the rank.
  template <class Rows, class Index>
  void sum_by_token(const Rows& rows, const Index& index) noexcept {
    std::array<const peerbus::bf16*, peerbus::moe::max_top_k> results{};
    std::array<float, peerbus::moe::max_top_k> weights{};
    results_.resize(peerbus::moe::max_top_k * row_.size());
    scaled_.resize(row_.size());
    for (std::size_t i = 0; i < rows.count(); ++i) {
      rows.decode(i, scaled_);
      const auto experts = index.experts(rows.first_row() + i);
      std::size_t count = 0;
      for (std::size_t k = 0; k < experts.size(); ++k) {
        const std::int32_t local = experts[k];
        if (local < 0) continue;
        const transform apply{index.expert_id(static_cast<std::size_t>(local)), row_.size()};
        for (std::size_t j = 0; j < row_.size(); ++j) row_[j] = scaled_[j] * apply.factor;
        peerbus::bf16* const result = results_.data() + count * row_.size();
        rotate(apply, result);
        results[count] = result;
        weights[count++] = index.weights(rows.first_row() + i)[k];
      }
      peerbus::kernel::best().weighted_sum(results.data(), weights.data(), count, row_.size(),
                                           rows.output(i).data());
    }
  }

  /// From `row_`, rounded.
  void rotate(const transform& apply, peerbus::bf16* out) const noexcept {
    const auto& kernels = peerbus::kernel::best();
    const std::size_t left = row_.size() - apply.rotation;
    kernels.narrow(row_.data() + apply.rotation, left, out);
    kernels.narrow(row_.data(), apply.rotation, out + left);
  }

  std::vector<float> row_;
  std::vector<float> scaled_;  // The rest rank-major only.
  std::vector<peerbus::bf16> results_;
};

}  // namespace ep_bench
