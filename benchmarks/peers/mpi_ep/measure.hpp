// SPDX-License-Identifier: MIT
#pragma once

#include <mpi.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <peerbus/core/bf16.hpp>

#include "ep_bench/options.hpp"
#include "ep_bench/oracle.hpp"
#include "ep_bench/payload.hpp"
#include "peers/mpi_ep/mpi.hpp"
#include "support/clock.hpp"
#include "support/pages.hpp"

namespace mpi_ep {

/// What a run found out. Times, in microseconds and of the slowest rank, are there on rank 0 only.
struct outcome {
  std::string wrong;  ///< what the check found; empty if all was right
  std::vector<double> dispatch;
  std::vector<double> combine;
  std::vector<double> pair;
  std::size_t dispatch_bytes = 0;  ///< of this rank
  std::size_t combine_bytes = 0;
};

/// The time of `operation` on this rank, between barriers, as in ep_bench.
template <class Operation>
double timed(Operation&& operation) {
  MPI_Barrier(MPI_COMM_WORLD);
  const auto start = bench::clock::now();
  operation();
  const double spent = bench::microseconds(bench::clock::now() - start);
  MPI_Barrier(MPI_COMM_WORLD);
  return spent;
}

/// Checks, warms up, times, checks again: the iterations of ep_bench without its plain copies. The
/// tokens have just been read, and the experts have just written what is combined. Collective.
template <class Flow>
outcome measure(const ep_bench::options& chosen, bool own_rows_travel) {
  const std::size_t rank = session::rank();
  const ep_bench::oracle truth{chosen, rank, session::ranks()};
  Flow flow{chosen, truth, rank, session::ranks(), own_rows_travel ? session::ranks() : rank};
  const bench::pages<peerbus::bf16> tokens{chosen.tokens * chosen.hidden};
  const bench::pages<peerbus::bf16> combined{chosen.tokens * chosen.hidden};
  ep_bench::fill_tokens(ep_bench::payload{chosen.seed}, rank, chosen.hidden, tokens.all());

  const auto check = [&] {
    std::ranges::fill(combined.all(), peerbus::bf16::from_bits(0xffff));
    flow.dispatch(tokens.all(), truth.mine());
    const std::string received = flow.check_received();
    flow.run_experts();
    flow.combine(truth.mine(), combined.all());
    const std::string back = flow.check_combined(combined.all());
    return first_of_all(received.empty() ? back : received);
  };
  outcome result;
  const auto iterate = [&](bool keep) {
    tokens.recall();
    const double there = timed([&] { flow.dispatch(tokens.all(), truth.mine()); });
    flow.run_experts();
    const double back = timed([&] { flow.combine(truth.mine(), combined.all()); });
    if (!keep) return;
    result.dispatch.push_back(there);
    result.combine.push_back(back);
    result.pair.push_back(there + back);
  };

  result.wrong = check();
  if (!result.wrong.empty()) return result;
  for (auto* const times : {&result.dispatch, &result.combine, &result.pair})
    times->reserve(chosen.iterations);
  for (std::size_t i = 0; i < chosen.warmup; ++i) iterate(false);
  for (std::size_t i = 0; i < chosen.iterations; ++i) iterate(true);
  result.wrong = check();
  for (auto* const times : {&result.dispatch, &result.combine, &result.pair})
    *times = slowest(*times);
  result.dispatch_bytes = flow.dispatch_bytes();
  result.combine_bytes = flow.combine_bytes();
  return result;
}

}  // namespace mpi_ep
