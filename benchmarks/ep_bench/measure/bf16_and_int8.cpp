// SPDX-License-Identifier: MIT
#include <memory>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/int8_per_token.hpp>

#include "ep_bench/measure/exchange_of.hpp"

namespace ep_bench {

std::unique_ptr<measured_exchange> make_bf16_or_int8(
    peerbus::communicator<peerbus::any_transport>& comm, const options& chosen) {
  if (chosen.codec == "bf16") return make_layout<peerbus::codec::bf16>(comm, chosen);
  return make_layout<peerbus::codec::int8_per_token>(comm, chosen);
}

}  // namespace ep_bench
