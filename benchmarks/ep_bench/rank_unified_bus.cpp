// SPDX-License-Identifier: MIT
#include <peerbus/transport/unified_bus.hpp>

#include "ep_bench/rank_impl.hpp"

namespace ep_bench {

int run_unified_bus(peerbus::bootstrap& boot, const options& chosen, placement how,
                    const delivery& deliver) {
  return run_rank(boot, chosen, how, deliver, peerbus::unified_bus{boot});
}

}  // namespace ep_bench
