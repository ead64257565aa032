// SPDX-License-Identifier: MIT
#include <memory>

#include <peerbus/codec/as_given.hpp>
#include <peerbus/codec/fp8_e4m3_per_128.hpp>

#include "ep_bench/measure/exchange_of.hpp"

namespace ep_bench {

std::unique_ptr<measured_exchange> make_fp8(peerbus::communicator<peerbus::any_transport>& comm,
                                            const options& chosen) {
  if (chosen.codec == "fp8_ue8m0")
    return make_layout<peerbus::codec::fp8_e4m3_per_128_ue8m0>(comm, chosen);
  if (chosen.codec == "fp8_as_given")
    return make_layout<peerbus::codec::fp8_e4m3_as_given>(comm, chosen);
  return make_layout<peerbus::codec::fp8_e4m3_per_128_f32>(comm, chosen);
}

}  // namespace ep_bench
