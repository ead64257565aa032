// SPDX-License-Identifier: MIT
#include <peerbus/moe/layout.hpp>

#include "ep_bench/measure/all_codecs.hpp"
#include "support/join_hosts.hpp"
#if PEERBUS_BENCH_FABRIC
#include <peerbus/transport/fabric.hpp>
#endif
#if PEERBUS_BENCH_VERBS
#include <peerbus/transport/verbs.hpp>
#endif

namespace ep_bench {

#define INSTANTIATE(far, layout)                            \
  template outcome measure<bench::hosts_over<far>, layout>( \
      peerbus::communicator<bench::hosts_over<far>>&, const options&, lane_pool&, std::size_t);
#define INSTANTIATE_ALL(far)                   \
  INSTANTIATE(far, peerbus::moe::compact)      \
  INSTANTIATE(far, peerbus::moe::padded)       \
  INSTANTIATE(far, peerbus::moe::rank_major)   \
  INSTANTIATE(far, peerbus::moe::slots)        \
  INSTANTIATE(far, peerbus::moe::expert_slots) \
  INSTANTIATE(far, peerbus::moe::automatic)

#if PEERBUS_BENCH_FABRIC
INSTANTIATE_ALL(peerbus::fabric)
#endif
#if PEERBUS_BENCH_VERBS
INSTANTIATE_ALL(peerbus::verbs)
#endif
#undef INSTANTIATE_ALL
#undef INSTANTIATE

}  // namespace ep_bench
