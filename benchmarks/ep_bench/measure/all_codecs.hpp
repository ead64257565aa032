// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstddef>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/fp8_e4m3_per_128.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/transport/concept.hpp>

#include "ep_bench/lane_pool.hpp"
#include "ep_bench/measurement.hpp"
#include "ep_bench/options.hpp"
#include "ep_bench/outcome.hpp"
#include "ep_bench/rank_impl.hpp"

namespace ep_bench {

/// True if a layout over a transport is measured in all codecs. The others are measured with int8
/// alone, because each codec of each takes long to compile.
template <class Transport, class Layout>
inline constexpr bool has_all_codecs =
    peerbus::direct_transport<Transport>
        ? !peerbus::moe::slot_layout<Layout> && !peerbus::moe::automatic_layout<Layout>
        : std::same_as<Layout, peerbus::moe::compact>;

/// Measures one layout over one transport with the codec that the options name.
template <class Transport, class Layout>
outcome measure(peerbus::communicator<Transport>& comm, const options& chosen, lane_pool& crew,
                std::size_t cores) {
  const auto with = [&]<class Codec>(Codec) {
    measurement<Transport, Codec, Layout> here{comm, chosen, crew, cores};
    return here.run();
  };
  if constexpr (has_all_codecs<Transport, Layout>) {
    if (chosen.codec == "bf16") return with(peerbus::codec::bf16{});
    if (chosen.codec == "fp8") return with(peerbus::codec::fp8_e4m3_per_128_f32{});
    if (chosen.codec == "fp8_ue8m0") return with(peerbus::codec::fp8_e4m3_per_128_ue8m0{});
  }
  return with(peerbus::codec::int8_per_token{});
}

}  // namespace ep_bench
