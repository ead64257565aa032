// SPDX-License-Identifier: MIT
#include "ep_bench/rank_impl.hpp"
#include "support/networks.hpp"

namespace ep_bench {

int run_network(peerbus::bootstrap& boot, const options& chosen, placement how,
                const delivery& deliver) {
  return bench::over_network(boot, chosen, chosen.transport, "ep_bench", [&](auto bus) {
    return run_rank(boot, chosen, how, deliver, std::move(bus));
  });
}

}  // namespace ep_bench
