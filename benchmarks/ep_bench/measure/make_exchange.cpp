// SPDX-License-Identifier: MIT
#include <memory>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/fp8_e4m3_per_128.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "ep_bench/measure/exchange_of.hpp"

namespace ep_bench {

std::unique_ptr<measured_exchange> make_exchange(
    peerbus::communicator<peerbus::any_transport>& comm, const options& chosen) {
  const bool is_fp8 = chosen.codec.starts_with("fp8");
  return is_fp8 ? make_fp8(comm, chosen) : make_bf16_or_int8(comm, chosen);
}

std::unique_ptr<measured_exchange> make_exchange(peerbus::communicator<peerbus::unified_bus>& comm,
                                                 const options& chosen) {
  using int8 = peerbus::codec::int8_per_token;
  const auto make = [&]<class Codec, class Layout>(Codec,
                                                   Layout) -> std::unique_ptr<measured_exchange> {
    return std::make_unique<exchange_of<peerbus::unified_bus, Codec, Layout>>(comm, chosen);
  };
  constexpr peerbus::moe::compact compact;
  if (chosen.layout == "slots") return make(int8{}, peerbus::moe::slots{});
  if (chosen.codec == "bf16") return make(peerbus::codec::bf16{}, compact);
  if (chosen.codec == "fp8") return make(peerbus::codec::fp8_e4m3_per_128_f32{}, compact);
  if (chosen.codec == "fp8_ue8m0") return make(peerbus::codec::fp8_e4m3_per_128_ue8m0{}, compact);
  return make(int8{}, compact);
}

}  // namespace ep_bench
