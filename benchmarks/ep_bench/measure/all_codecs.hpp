// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/fp8_e4m3_per_128.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/transport/concept.hpp>

#include "ep_bench/lane_crew.hpp"
#include "ep_bench/measurement.hpp"
#include "ep_bench/options.hpp"
#include "ep_bench/outcome.hpp"
#include "ep_bench/rank_impl.hpp"

namespace ep_bench {

/// Slots, automatic layouts and planes are measured with one codec, as each takes long to compile.
template <class Transport, class Layout>
outcome measure(peerbus::communicator<Transport>& comm, const options& chosen, lane_crew& crew,
                std::size_t cores) {
  const auto with = [&]<class Codec>(Codec) {
    measurement<Transport, Codec, Layout> here{comm, chosen, crew, cores};
    return here.run();
  };
  if constexpr (!peerbus::moe::slot_layout<Layout> && !peerbus::moe::automatic_layout<Layout> &&
                !peerbus::partly_direct_transport<Transport>) {
    if (chosen.codec == "bf16") return with(peerbus::codec::bf16{});
    if (chosen.codec == "fp8") return with(peerbus::codec::fp8_e4m3_per_128_f32{});
    if (chosen.codec == "fp8_ue8m0") return with(peerbus::codec::fp8_e4m3_per_128_ue8m0{});
  }
  return with(peerbus::codec::int8_per_token{});
}

}  // namespace ep_bench
