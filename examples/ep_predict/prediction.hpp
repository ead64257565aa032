// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <peerbus/transport/simulated/links.hpp>
#include <peerbus/transport/simulated/platform.hpp>

#include "load.hpp"
#include "rank_run.hpp"

/// Times of a dispatch and a combine, predicted by running the library's own code in a simulation.
namespace ep_predict {

/// Microseconds of one operation, over ranks and rounds. A rank's time begins when it calls, late
/// or not.
struct times {
  double median = 0;
  double slowest = 0;  ///< the median over rounds of the slowest rank
  double mean = 0;
  double least = 0;
  double most = 0;
  double p10 = 0;  ///< the 10th percentile
  double p90 = 0;
  double p99 = 0;
};

/// The outcome.
struct prediction {
  times dispatch;
  times combine;
  std::uint64_t bytes = 0;       ///< that a rank sends in a round, on average
  std::uint64_t messages = 0;    ///< that a rank sends in a round, on average
  std::size_t window_bytes = 0;  ///< of the exchange's window, for each rank
};

/// Returns the statistics of times in microseconds, [rounds][ranks], of which there is at least
/// one.
[[nodiscard]] times summary_of(const std::vector<std::vector<double>>& by_round);

/// Runs the rounds. All ranks begin at once, except for what `batch.arrival` says. If `trace` is
/// not empty, writes what all ranks did to this file, which Perfetto opens; its times are virtual.
/// If `links` is not null, they carry messages instead of the platform's ports.
/// Throws: `peerbus::error`, or std::runtime_error if the batch is impossible, if a rank failed,
/// which it has printed, or if the file cannot be written.
[[nodiscard]] prediction predict(const load& batch, const work& own,
                                 const peerbus::simulated_platform& platform,
                                 const std::string& trace = {},
                                 peerbus::simulated_links* links = nullptr);

/// Returns the median over ranks of the microseconds of a layer of a model, whose ranks have
/// `batch.in_flight` batches under way, and whose experts compute `experts_us` for the rows of each
/// batch (`run_layers`).
/// Throws: as `predict`.
[[nodiscard]] double layer_us_of(const load& batch, double experts_us, const work& own,
                                 const peerbus::simulated_platform& platform);

}  // namespace ep_predict
