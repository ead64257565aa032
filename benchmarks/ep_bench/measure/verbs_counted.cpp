// SPDX-License-Identifier: MIT
#if PEERBUS_BENCH_VERBS

#include <peerbus/moe/layout.hpp>
#include <peerbus/transport/verbs.hpp>

#include "ep_bench/measure/all_codecs.hpp"

namespace ep_bench {

template outcome measure<peerbus::verbs, peerbus::moe::padded>(
    peerbus::communicator<peerbus::verbs>&, const options&, lane_crew&, std::size_t);
template outcome measure<peerbus::verbs, peerbus::moe::rank_major>(
    peerbus::communicator<peerbus::verbs>&, const options&, lane_crew&, std::size_t);

}  // namespace ep_bench

#endif
