// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/communicator.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/exchange.hpp>

#include "ep_bench/options.hpp"

namespace ep_bench {

/// The memory of the spans is that of `chosen`.
inline peerbus::moe::exchange_config config_of(const options& chosen) {
  return {.experts = chosen.experts,
          .hidden = chosen.hidden,
          .top_k = chosen.top_k,
          .max_tokens = chosen.tokens,
          .outputs = chosen.outputs == "home" ? peerbus::moe::outputs_at::home
                                              : peerbus::moe::outputs_at::expert,
          .physical_to_logical = chosen.physical_to_logical,
          .replicas = {.policy = peerbus::moe::replica_policy::round_robin},
          .stream_from = chosen.stream_from(),
          .protocol = chosen.protocol,
          .costs = &chosen.costs,
          .relay = chosen.relay};
}

}  // namespace ep_bench
