// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <span>
#include <utility>

#include <peerbus/communicator.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/moe/exchange.hpp>

#include "ep_bench/gate.hpp"
#include "ep_bench/options.hpp"

namespace ep_bench {

/// The library's exchange with the face of `basic_flow`.
template <class Transport, class Codec>
class fused_flow {
 public:
  fused_flow(peerbus::communicator<Transport>& comm, const options& chosen)
      : moe_{comm,
             {.experts = chosen.experts,
              .hidden = chosen.hidden,
              .top_k = chosen.top_k,
              .max_tokens = chosen.tokens},
             Codec{}} {}

  [[nodiscard]] const auto& dispatch(std::span<const peerbus::bf16> tokens,
                                     const gate::choice& route) {
    received_.emplace(moe_.dispatch(tokens, {route.experts, route.weights}));
    return *received_;
  }
  void combine(const gate::choice&, std::span<peerbus::bf16> out) { moe_.combine(*received_, out); }

 private:
  using exchange = peerbus::moe::exchange<Transport, Codec>;
  using received = decltype(std::declval<exchange&>().dispatch(
      std::span<const peerbus::bf16>{}, std::declval<const peerbus::moe::routing&>()));

  exchange moe_;
  std::optional<received> received_;
};

}  // namespace ep_bench
