// SPDX-License-Identifier: MIT
#pragma once

#include <type_traits>

#include <peerbus/communicator.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/two_level_exchange.hpp>

#include "ep_bench/options.hpp"

namespace ep_bench {

/// True if a transport has several planes and counts the bytes of each.
template <class Transport>
inline constexpr bool counts_planes =
    requires(const Transport& bus) { bus.far_traffic().messages; };

/// The exchange that is measured. That over several planes can relay.
template <class Transport, class Codec, class Layout>
struct measured_exchange {
  using type = peerbus::moe::exchange<Transport, Codec, Layout>;
};
template <class Transport, class Codec, class Layout>
  requires counts_planes<Transport>
struct measured_exchange<Transport, Codec, Layout> {
  using type = peerbus::moe::two_level_exchange<Transport, Codec, Layout>;
};

inline peerbus::moe::exchange_config config_of(const options& chosen) {
  return {.experts = chosen.experts,
          .hidden = chosen.hidden,
          .top_k = chosen.top_k,
          .max_tokens = chosen.tokens,
          .outputs = chosen.outputs == "home" ? peerbus::moe::outputs_at::home
                                              : peerbus::moe::outputs_at::expert,
          .stream_from = chosen.stream_from(),
          .protocol = chosen.protocol,
          .costs = &chosen.costs};
}

template <class Transport, class Codec, class Layout>
typename measured_exchange<Transport, Codec, Layout>::type make_exchange(
    peerbus::communicator<Transport>& comm, const options& chosen) {
  using made = typename measured_exchange<Transport, Codec, Layout>::type;
  if constexpr (counts_planes<Transport>)
    return made{comm, config_of(chosen), chosen.relay, Codec{}, Layout{}};
  else
    return made{comm, config_of(chosen), Codec{}, Layout{}};
}

}  // namespace ep_bench
