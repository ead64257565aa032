// SPDX-License-Identifier: MIT
#include <peerbus/moe/layout.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "ep_bench/measure/all_codecs.hpp"

namespace ep_bench {

template outcome measure<peerbus::unified_bus, peerbus::moe::padded>(
    peerbus::communicator<peerbus::unified_bus>&, const options&, lane_pool&, std::size_t);

}  // namespace ep_bench
