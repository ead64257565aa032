// SPDX-License-Identifier: MIT
#if PEERBUS_BENCH_FABRIC

#include <peerbus/moe/layout.hpp>
#include <peerbus/transport/fabric.hpp>

#include "ep_bench/measure/all_codecs.hpp"

namespace ep_bench {

template outcome measure<peerbus::fabric, peerbus::moe::compact>(
    peerbus::communicator<peerbus::fabric>&, const options&, lane_crew&, std::size_t);

}  // namespace ep_bench

#endif
