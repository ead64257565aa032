// SPDX-License-Identifier: MIT
#include <peerbus/moe/layout.hpp>

#include "ep_bench/measure/all_codecs.hpp"
#include "ep_bench/measure/planes.hpp"
#if PEERBUS_BENCH_FABRIC
#include <peerbus/transport/fabric.hpp>
#endif
#if PEERBUS_BENCH_VERBS
#include <peerbus/transport/verbs.hpp>
#endif

namespace ep_bench {

#if PEERBUS_BENCH_FABRIC
template outcome measure<hosts_over<peerbus::fabric>, peerbus::moe::compact>(
    peerbus::communicator<hosts_over<peerbus::fabric>>&, const options&, lane_pool&, std::size_t);
#endif
#if PEERBUS_BENCH_VERBS
template outcome measure<hosts_over<peerbus::verbs>, peerbus::moe::compact>(
    peerbus::communicator<hosts_over<peerbus::verbs>>&, const options&, lane_pool&, std::size_t);
#endif

}  // namespace ep_bench
