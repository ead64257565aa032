// SPDX-License-Identifier: MIT
#include <peerbus/transport/loopback.hpp>

#include "ep_bench/rank_impl.hpp"

namespace ep_bench {

int run_loopback(peerbus::bootstrap& boot, const options& chosen, placement how,
                 const delivery& deliver) {
  return run_rank(boot, chosen, how, deliver, peerbus::loopback{boot});
}

}  // namespace ep_bench
