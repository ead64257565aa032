// SPDX-License-Identifier: MIT
#include <peerbus/moe/layout.hpp>
#include <peerbus/transport/loopback.hpp>

#include "ep_bench/measure/all_codecs.hpp"

namespace ep_bench {

template outcome measure<peerbus::loopback, peerbus::moe::compact>(
    peerbus::communicator<peerbus::loopback>&, const options&, lane_pool&, std::size_t);

}  // namespace ep_bench
