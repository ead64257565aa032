// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include <peerbus/communicator.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/transport/verbs.hpp>

#include "ep_bench/rank_impl.hpp"

namespace ep_bench {

/// One layout with counts first and one with slots.
inline outcome measure_layout(peerbus::communicator<peerbus::verbs>& comm, const options& chosen,
                              lane_crew& crew, std::size_t cores) {
  if (chosen.layout == "expert_slots")
    return measure<peerbus::verbs, peerbus::moe::expert_slots>(comm, chosen, crew, cores);
  return measure<peerbus::verbs, peerbus::moe::compact>(comm, chosen, crew, cores);
}

}  // namespace ep_bench
