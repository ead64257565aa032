// SPDX-License-Identifier: MIT
#include <utility>

#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/loopback.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "coll_bench/rank_impl.hpp"

namespace coll_bench {

int run_unified_bus(peerbus::bootstrap& boot, const options& chosen) {
  peerbus::unified_bus bus{boot};
  if (chosen.transport == "puts")
    return run_over(boot, chosen, peerbus::any_transport{std::move(bus)});
  return run_over(boot, chosen, std::move(bus));
}

int run_loopback(peerbus::bootstrap& boot, const options& chosen) {
  return run_over(boot, chosen, peerbus::loopback{boot});
}

}  // namespace coll_bench
