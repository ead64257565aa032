// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include <peerbus/communicator.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/transport/any_transport.hpp>

#include "ep_bench/rank_impl.hpp"

namespace ep_bench {

/// Over any network: all layouts; the compact one alone in all codecs. Held as `any_transport`,
/// because the network takes the time, and each further transport takes long to compile.
inline outcome measure_layout(peerbus::communicator<peerbus::any_transport>& comm,
                              const options& chosen, lane_crew& crew, std::size_t cores) {
  if (chosen.layout == "padded")
    return measure<peerbus::any_transport, peerbus::moe::padded>(comm, chosen, crew, cores);
  if (chosen.layout == "rank")
    return measure<peerbus::any_transport, peerbus::moe::rank_major>(comm, chosen, crew, cores);
  if (chosen.layout == "slots")
    return measure<peerbus::any_transport, peerbus::moe::slots>(comm, chosen, crew, cores);
  if (chosen.layout == "expert_slots")
    return measure<peerbus::any_transport, peerbus::moe::expert_slots>(comm, chosen, crew, cores);
  if (chosen.layout == "automatic")
    return measure<peerbus::any_transport, peerbus::moe::automatic>(comm, chosen, crew, cores);
  return measure<peerbus::any_transport, peerbus::moe::compact>(comm, chosen, crew, cores);
}

}  // namespace ep_bench
