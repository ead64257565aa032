// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/bf16.hpp>

#include "load.hpp"

namespace ep_predict {

/// The times of the rank itself that are no transport's.
struct work {
  double dispatch_ns = 0;  ///< before each dispatch: starting a kernel and what it computes
  double combine_ns = 0;   ///< before each combine
  double sum_ns = 0;       ///< for each output that a combine adds up
};

/// The memory and the results that all ranks of a simulation share, as one thread runs them.
struct job {
  job(const load& asked, const work& taken, bool records);

  const load& batch;
  const work& own;
  double token_ns = 0;                        ///< for each token that a straggler encodes
  std::vector<peerbus::bf16> tokens;          ///< of every rank; nobody looks at them
  std::vector<peerbus::bf16> outputs;         ///< likewise
  std::vector<std::vector<double>> dispatch;  ///< [rounds][ranks], in microseconds
  std::vector<std::vector<double>> combine;   ///< likewise
  std::vector<std::string> events;            ///< [ranks], of a trace; empty if nothing is recorded
  std::chrono::nanoseconds pause{};  ///< longer than ranks leave a barrier one after the other
  std::chrono::nanoseconds start{-1};
  std::size_t waiting = 0;
  std::size_t window_bytes = 0;  ///< of a rank
  std::uint64_t bytes = 0;       ///< of all ranks, when the measured rounds began, then in them
  std::uint64_t messages = 0;
  double experts_us = 0;       ///< that experts compute with the rows of a batch, for `run_layers`
  std::vector<double> layers;  ///< [ranks], microseconds of a layer, by `run_layers`
};

/// Runs the rounds of the calling rank, and writes its times to `all`.
void run_rank(peerbus::bootstrap& boot, job& all);

/// Runs layers of a model on the calling rank, one after the other without a pause: each dispatches
/// `load::in_flight` batches, runs the experts with the rows of one batch while the others travel,
/// and combines. Writes the time of a layer to `all`.
void run_layers(peerbus::bootstrap& boot, job& all);

}  // namespace ep_predict
