// SPDX-License-Identifier: MIT
#include <peerbus/moe/layout.hpp>
#include <peerbus/transport/any_transport.hpp>

#include "ep_bench/measure/all_codecs.hpp"

namespace ep_bench {

template outcome measure<peerbus::any_transport, peerbus::moe::padded>(
    peerbus::communicator<peerbus::any_transport>&, const options&, lane_pool&, std::size_t);
template outcome measure<peerbus::any_transport, peerbus::moe::rank_major>(
    peerbus::communicator<peerbus::any_transport>&, const options&, lane_pool&, std::size_t);

}  // namespace ep_bench
