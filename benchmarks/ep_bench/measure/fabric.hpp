// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include <peerbus/communicator.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/transport/fabric.hpp>

#include "ep_bench/rank_impl.hpp"

namespace ep_bench {

/// One layout: rows travel as over `verbs`.
inline outcome measure_layout(peerbus::communicator<peerbus::fabric>& comm, const options& chosen,
                              lane_crew& crew, std::size_t cores) {
  return measure<peerbus::fabric, peerbus::moe::compact>(comm, chosen, crew, cores);
}

}  // namespace ep_bench
