// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/trace/job_trace.hpp>
#include <peerbus/trace/recorder.hpp>

#include "ep_bench/figures.hpp"
#include "ep_bench/lane_pool.hpp"
#include "ep_bench/measurement.hpp"
#include "ep_bench/options.hpp"
#include "ep_bench/rank.hpp"
#include "support/noise.hpp"
#include "support/pin.hpp"

namespace ep_bench {

template <class Transport>
int run_rank(peerbus::bootstrap& boot, const options& chosen, placement how,
             const delivery& deliver, Transport bus) {
  const std::size_t cores = boot.cores_here();
  peerbus::communicator<Transport> comm{std::move(bus)};
  // After the transport has counted the cores, and the pool before its maker, whose core it would
  // share. Processes of a single lane were pinned by whoever forked them.
  const std::size_t first_core = boot.rank().index() * chosen.lanes;
  const bool pin = how == placement::pinned &&
                   (boot.addresses() == peerbus::address_space::shared || chosen.lanes > 1);
  lane_pool pool{chosen.lanes, pin ? std::optional{first_core} : std::nullopt};
  if (pin) bench::pin_this_thread(first_core);

  std::optional<peerbus::job_trace> trace;
  // Each lane has a thread of its own.
  const peerbus::recorder_options usual;
  if (!chosen.trace.empty())
    trace.emplace(boot, comm.default_deadline(),
                  peerbus::recorder_options{.threads = std::max(chosen.lanes, usual.threads)});
  outcome result = measurement<Transport>{comm, chosen, pool, cores}.run();
  if (trace) trace->write(chosen.trace, comm.default_deadline());
  result.cores = cores;
  result.crowded = boot.ranks_here() > cores;
  if (comm.rank().index() == 0) {
    result.noise = noise_of(chosen, result);
    deliver(chosen, {comm.size(), words_for(how)}, result);
    if (bench::refuses_noise("ep_bench", chosen.noise, result.noise)) return 1;
  }
  return result.wrong.empty() ? 0 : 1;
}

}  // namespace ep_bench
