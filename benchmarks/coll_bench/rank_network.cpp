// SPDX-License-Identifier: MIT
#include "coll_bench/rank_impl.hpp"
#include "support/networks.hpp"

namespace coll_bench {

int run_network(peerbus::bootstrap& boot, const options& chosen) {
  return bench::over_network(boot, chosen, chosen.transport, "coll_bench", [&](auto bus) {
    return run_over(boot, chosen, peerbus::any_transport{std::move(bus)});
  });
}

}  // namespace coll_bench
