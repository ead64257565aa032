// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/communicator.hpp>

#include "common/pin.hpp"
#include "ep_bench/machine.hpp"
#include "ep_bench/measurement.hpp"
#include "ep_bench/options.hpp"
#include "ep_bench/rank.hpp"
#include "ep_bench/report.hpp"

namespace ep_bench {

template <class Transport, class Codec>
outcome measure(peerbus::communicator<Transport>& comm, const options& chosen, bool crowded) {
  measurement<Transport, Codec> here{comm, chosen, crowded};
  return here.run();
}

template <class Transport>
int run_rank(peerbus::bootstrap& boot, const options& chosen, placement how) {
  const std::size_t cores = boot.cores_here();
  const bool crowded = boot.ranks_here() > cores;
  peerbus::communicator<Transport> comm{Transport{boot}};
  // After the transport has counted the cores. Processes were pinned by whoever forked them.
  if (how == placement::pinned && Transport::ranks_are == peerbus::rank_kind::threads)
    bench::pin_this_thread(boot.rank().index());

  outcome result = chosen.codec == "bf16"
                       ? measure<Transport, peerbus::codec::bf16>(comm, chosen, crowded)
                       : measure<Transport, peerbus::codec::int8_per_token>(comm, chosen, crowded);
  result.cores = cores;
  result.crowded = crowded;
  if (comm.rank().index() == 0) {
    const group who{comm.size(), how == placement::pinned       ? "pinned"
                                 : how == placement::not_pinned ? "not pinned"
                                                                : "placed by the launcher"};
    const machine where = machine::here();
    print(chosen, who, where, result);
    if (!chosen.json.empty()) write_json(chosen, who, where, result);
  }
  return result.wrong.empty() ? 0 : 1;
}

}  // namespace ep_bench
