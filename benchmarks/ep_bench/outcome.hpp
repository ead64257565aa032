// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <peerbus/core/cost_table.hpp>
#include <peerbus/moe/choices.hpp>
#include <peerbus/moe/row_traffic.hpp>
#include <peerbus/moe/stores.hpp>

#include "support/samples.hpp"

namespace ep_bench {

/// What is timed in every iteration; the table of samples has them in this order.
enum class series : std::size_t {
  dispatch,
  read,     ///< of all rows, once
  experts,  ///< the time for which experts compute
  combine,
  sum,  ///< of these
  encode,
  plain_dispatch,
  plain_read,
  plain_combine,
  streaming_dispatch,
  streaming_read,
  streaming_combine,
  shared_plain_dispatch,
  shared_plain_combine,
  shared_streaming_dispatch,
  shared_streaming_combine
};
inline constexpr std::size_t series_count = 16;

/// The operations of which the slowest rank is told, with their names.
inline constexpr std::array operation_series{std::pair{"dispatch", series::dispatch},
                                             std::pair{"combine", series::combine},
                                             std::pair{"sum", series::sum}};

/// What the operations are compared with: `plain_copy` or `plain_puts`.
enum class floor_kind { copies, puts };

/// What one dispatch and combine of rank 0 moved over each plane.
struct plane_counts {
  std::size_t near_ranks = 0;      ///< rank 0 included
  peerbus::moe::row_traffic rows;  ///< as the exchange says
  double near_put_bytes = 0;       ///< as the transport counts: counts of rows
  double near_messages = 0;        ///< as the transport counts: puts and signals
  double far_bytes = 0;            ///< as the transport counts: all of them
  double far_messages = 0;         ///< as the transport counts

  /// The bytes of rows that were stored at near ranks, of outputs that were loaded from there, and
  /// of what was put there.
  [[nodiscard]] double near_bytes() const noexcept {
    return static_cast<double>(rows.near_bytes + rows.near_output_bytes) + near_put_bytes;
  }
};

/// How the rows that experts work on spread over the ranks.
struct rank_load {
  double most_rows = 0;  ///< of a rank
  double mean_rows = 0;

  /// Returns the mean over the most, as load balancers count it: 1 if all ranks have as many.
  [[nodiscard]] double balancedness() const noexcept {
    return most_rows > 0 ? mean_rows / most_rows : 1;
  }
};

/// A plan by which experts changed their places during a run.
struct replan {
  std::size_t step = 0;   ///< the iteration that it came before
  std::size_t moves = 0;  ///< places that got another expert
  double before = 1;      ///< balancedness of the counted rows where experts were
  double after = 1;       ///< balancedness of these rows by the plan
};

/// What an operation takes of a core: means of one rank.
struct core_use {
  double cpu_us = 0;  ///< CPU time, of the program and of the kernel
  double sleeps = 0;  ///< how often the rank gave its core up to sleep
  double yields = 0;  ///< how often it went on later, having yielded or been interrupted
};

/// What a run found out. Times are there on rank 0 only, and not if the check before them failed.
struct outcome {
  std::string wrong;  ///< what the check found; empty if all was right
  /// By `series`. Streaming copies are zero unless the floor is copies, the shared ones unless
  /// `shares_floor`.
  bench::sample_table samples;
  bench::sample_table rank_medians;  ///< by `series`: of each rank
  std::vector<double> signal_one_way_ns;
  floor_kind floor = floor_kind::copies;
  std::size_t phases = 1;                  ///< of a dispatch, each of which needs a signal's way
  rank_load load;                          ///< in the end
  std::vector<double> balancedness;        ///< of each iteration
  std::vector<replan> replans;             ///< in their order
  bool crowded = false;                    ///< more ranks than cores
  std::string noise;                       ///< signs that others disturbed the run; empty: none
  core_use dispatch_core;                  ///< of rank 0, if crowded
  core_use combine_core;                   ///< of rank 0, if crowded
  std::size_t cores = 0;                   ///< that the ranks may use
  std::size_t dispatch_bytes = 0;          ///< of each rank
  std::size_t combine_bytes = 0;           ///< of each rank
  std::optional<plane_counts> planes;      ///< if the transport has several
  peerbus::moe::exchange_choices choices;  ///< of this rank in the end
  peerbus::moe::store_choice stores;       ///< of this rank in the end, for its tokens
  peerbus::cost_table learned;             ///< what this rank has found out about stores

  [[nodiscard]] const std::vector<double>& of(series which) const noexcept {
    return samples[static_cast<std::size_t>(which)];
  }
  /// Returns the rank that was slowest in something that was timed.
  [[nodiscard]] bench::slowest_rank slowest_in(series which) const {
    return bench::slowest_rank::of(rank_medians[static_cast<std::size_t>(which)]);
  }
  /// Whether the bytes of all ranks were copied by as many ranks as there are cores as well.
  [[nodiscard]] bool shares_floor() const noexcept {
    return crowded && floor == floor_kind::copies;
  }
  /// How many were timed.
  [[nodiscard]] std::size_t iterations() const noexcept {
    return samples.empty() ? 0 : samples.front().size();
  }
};

}  // namespace ep_bench
