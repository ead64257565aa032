// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <optional>
#include <utility>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/trace/job_trace.hpp>
#include <peerbus/trace/recorder.hpp>
#include <peerbus/transport/loopback.hpp>

#include "ep_bench/figures.hpp"
#include "ep_bench/lane_pool.hpp"
#include "ep_bench/options.hpp"
#include "ep_bench/rank.hpp"
#include "support/noise.hpp"
#include "support/pin.hpp"

namespace ep_bench {

/// One layout over one transport, defined in a source file each, as they take long to compile.
template <class Transport, class Layout>
outcome measure(peerbus::communicator<Transport>& comm, const options& chosen, lane_pool& pool,
                std::size_t cores);

/// Measures the layout that the options name: any.
template <class Transport>
outcome measure_layout(peerbus::communicator<Transport>& comm, const options& chosen,
                       lane_pool& pool, std::size_t cores) {
  if (chosen.layout == "padded")
    return measure<Transport, peerbus::moe::padded>(comm, chosen, pool, cores);
  if (chosen.layout == "rank_major")
    return measure<Transport, peerbus::moe::rank_major>(comm, chosen, pool, cores);
  if (chosen.layout == "slots")
    return measure<Transport, peerbus::moe::slots>(comm, chosen, pool, cores);
  if (chosen.layout == "expert_slots")
    return measure<Transport, peerbus::moe::expert_slots>(comm, chosen, pool, cores);
  if (chosen.layout == "automatic")
    return measure<Transport, peerbus::moe::automatic>(comm, chosen, pool, cores);
  return measure<Transport, peerbus::moe::compact>(comm, chosen, pool, cores);
}
/// Threads are measured in one layout only: they move rows as processes do, and each further layout
/// takes half a minute to compile.
inline outcome measure_layout(peerbus::communicator<peerbus::loopback>& comm, const options& chosen,
                              lane_pool& pool, std::size_t cores) {
  return measure<peerbus::loopback, peerbus::moe::compact>(comm, chosen, pool, cores);
}

template <class Transport>
int run_rank(peerbus::bootstrap& boot, const options& chosen, placement how,
             const delivery& deliver, Transport bus) {
  const std::size_t cores = boot.cores_here();
  peerbus::communicator<Transport> comm{std::move(bus)};
  // After the transport has counted the cores, and the pool before its maker, whose core it would
  // share. Processes of a single lane were pinned by whoever forked them.
  const std::size_t first_core = boot.rank().index() * chosen.lanes;
  const bool pin =
      how == placement::pinned && (std::same_as<Transport, peerbus::loopback> || chosen.lanes > 1);
  lane_pool pool{chosen.lanes, pin ? std::optional{first_core} : std::nullopt};
  if (pin) bench::pin_this_thread(first_core);

  std::optional<peerbus::job_trace> trace;
  // Each lane has a thread of its own.
  const peerbus::recorder_options usual;
  if (!chosen.trace.empty())
    trace.emplace(boot, comm.default_deadline(),
                  peerbus::recorder_options{.threads = std::max(chosen.lanes, usual.threads)});
  outcome result = measure_layout(comm, chosen, pool, cores);
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
