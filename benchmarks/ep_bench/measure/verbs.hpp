// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include <peerbus/communicator.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/transport/verbs.hpp>

#include "ep_bench/rank_impl.hpp"

namespace ep_bench {

/// All layouts; the compact one alone in all codecs.
inline outcome measure_layout(peerbus::communicator<peerbus::verbs>& comm, const options& chosen,
                              lane_crew& crew, std::size_t cores) {
  if (chosen.layout == "padded")
    return measure<peerbus::verbs, peerbus::moe::padded>(comm, chosen, crew, cores);
  if (chosen.layout == "rank")
    return measure<peerbus::verbs, peerbus::moe::rank_major>(comm, chosen, crew, cores);
  if (chosen.layout == "slots")
    return measure<peerbus::verbs, peerbus::moe::slots>(comm, chosen, crew, cores);
  if (chosen.layout == "expert_slots")
    return measure<peerbus::verbs, peerbus::moe::expert_slots>(comm, chosen, crew, cores);
  if (chosen.layout == "automatic")
    return measure<peerbus::verbs, peerbus::moe::automatic>(comm, chosen, crew, cores);
  return measure<peerbus::verbs, peerbus::moe::compact>(comm, chosen, crew, cores);
}

}  // namespace ep_bench
