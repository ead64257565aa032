// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <peerbus/core/cost_table.hpp>
#include <peerbus/moe/protocol.hpp>

namespace moe_costs {

/// The times of a dispatch by both protocols.
struct point {
  std::size_t ranks = 0;
  double rows = 0;     ///< that each rank sends
  double row_kib = 0;  ///< KiB of a row and its scales
  double counts_first_us = 0;
  double one_phase_us = 0;
};

namespace fitting {

inline constexpr std::size_t unknowns = 4;
using vector = std::array<double, unknowns>;
inline constexpr std::array<std::string_view, unknowns> names{"counts_round_us", "counts_rank_us",
                                                              "slot_row_us", "slot_kib_us"};

/// Returns the factors of the costs in the time that one phase saves, as `estimate_protocols` has
/// them.
inline vector factors_of(const point& at) noexcept {
  return {1, static_cast<double>(at.ranks) - 1, -at.rows, -at.rows * at.row_kib};
}

/// Solves the normal equations of `points` for the unknowns in `wanted`; the others are as `fixed`
/// says. Each point counts by the inverse square of its time, so that short dispatches, for which
/// the choice matters most, count as much as long ones.
/// Returns: all unknowns, or nothing if the points do not tell them apart.
inline std::optional<vector> solve(std::span<const point> points, unsigned wanted,
                                   const vector& fixed) {
  std::array<std::array<double, unknowns + 1>, unknowns> rows{};
  for (std::size_t i = 0; i < unknowns; ++i)
    if ((wanted >> i & 1U) == 0) {
      rows[i][i] = 1;
      rows[i][unknowns] = fixed[i];
    }
  for (const point& at : points) {
    const vector factors = factors_of(at);
    const double weight = 1 / (at.counts_first_us * at.counts_first_us);
    for (std::size_t i = 0; i < unknowns; ++i) {
      if ((wanted >> i & 1U) == 0) continue;
      for (std::size_t j = 0; j < unknowns; ++j) rows[i][j] += weight * factors[i] * factors[j];
      rows[i][unknowns] += weight * factors[i] * (at.counts_first_us - at.one_phase_us);
    }
  }
  for (std::size_t i = 0; i < unknowns; ++i) {
    // What is left of a diagonal element that other unknowns explain is rounding alone.
    const double scale = rows[i][i];
    for (std::size_t k = 0; k < i; ++k) {
      const double factor = rows[i][k] / rows[k][k];
      for (std::size_t j = k; j <= unknowns; ++j) rows[i][j] -= factor * rows[k][j];
    }
    if (!(rows[i][i] > 1e-9 * scale)) return std::nullopt;
  }
  vector found{};
  for (std::size_t i = unknowns; i-- > 0;) {
    found[i] = rows[i][unknowns];
    for (std::size_t j = i + 1; j < unknowns; ++j) found[i] -= rows[i][j] * found[j];
    found[i] /= rows[i][i];
  }
  return found;
}

/// Returns the weighted sum of the squared differences between `points` and the costs.
inline double error_of(std::span<const point> points, const vector& costs) noexcept {
  double sum = 0;
  for (const point& at : points) {
    const vector factors = factors_of(at);
    double off = at.counts_first_us - at.one_phase_us;
    for (std::size_t i = 0; i < unknowns; ++i) off -= factors[i] * costs[i];
    sum += off * off / (at.counts_first_us * at.counts_first_us);
  }
  return sum;
}

/// Returns the costs of `path` that the library assumes.
inline vector assumed(std::string_view path) {
  const auto of = [&](std::size_t ranks, double rows, double row_kib) {
    return peerbus::moe::estimate_protocols({}, {path, ranks, rows, row_kib});
  };
  const double round = of(1, 0, 0).counts_us;
  const double row = of(1, 1, 0).slots_us;
  return {round, of(2, 0, 0).counts_us - round, row, of(1, 1, 1).slots_us - row};
}

}  // namespace fitting

/// Returns the costs that explain `points` best, by weighted least squares: none of them negative,
/// `moe.<path>.` before their names. If all points have as many ranks, or rows of the same size,
/// the cost per rank or per KiB is not to be found: it is taken as assumed, and left out of the
/// result.
inline peerbus::cost_table fit(std::span<const point> points, std::string_view path) {
  unsigned wanted = 0b0101;
  for (const point& at : points) {
    if (at.ranks != points[0].ranks) wanted |= 0b0010U;
    if (at.row_kib != points[0].row_kib) wanted |= 0b1000U;
  }
  // The best costs without negative ones are the best of some subset, while the others are 0.
  const fitting::vector assumed = fitting::assumed(path);
  fitting::vector best{};
  double least = std::numeric_limits<double>::infinity();
  for (unsigned subset = wanted;; subset = (subset - 1) & wanted) {
    fitting::vector fixed{};
    for (std::size_t i = 0; i < fitting::unknowns; ++i)
      if ((wanted >> i & 1U) == 0) fixed[i] = assumed[i];
    if (const auto found = fitting::solve(points, subset, fixed)) {
      bool is_possible = true;
      for (const double cost : *found) is_possible = is_possible && cost >= 0;
      const double off = fitting::error_of(points, *found);
      if (is_possible && off < least) {
        least = off;
        best = *found;
      }
    }
    if (subset == 0) break;
  }
  peerbus::cost_table costs;
  for (std::size_t i = 0; i < fitting::unknowns; ++i)
    if ((wanted >> i & 1U) != 0)
      costs.set("moe." + std::string{path} + "." + std::string{fitting::names[i]}, best[i]);
  return costs;
}

}  // namespace moe_costs
