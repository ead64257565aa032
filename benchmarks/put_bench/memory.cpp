// SPDX-License-Identifier: MIT
#include "put_bench/memory.hpp"

#include <algorithm>
#include <memory>
#include <string>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/cores.hpp>
#include <peerbus/transport/loopback.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "put_bench/rank.hpp"
#include "put_bench/ucx.hpp"

namespace put_bench {
namespace {

template <class Transport>
int run_over(peerbus::bootstrap& boot, const options& chosen, const char* name) {
  std::string over{name};
  contenders all;
  // Cores of the process that pinned its ranks, of which each knows of one only.
  const bool crowded = boot.shares_cores();
  const auto sides = std::make_shared<memory_sides<Transport>>(Transport{boot}, crowded);
  add_in_memory(all, sides, chosen.has("stores"), chosen.has("peerbus"));
#if PEERBUS_BENCH_UCX
  if (chosen.has("ucx")) {
    add_ucx(all, boot, chosen.ucx_transports, std::ranges::max(chosen.latency_bytes));
    over += "; UCX " + ucx_version() + " over " + chosen.ucx_transports;
  }
#endif
  report found{boot, chosen, over};
  found.measure(all, [&] { sides->comm().barrier(); });
  return found.finish();
}

}  // namespace

int run_unified_bus(peerbus::bootstrap& boot, const options& chosen) {
  return run_over<peerbus::unified_bus>(boot, chosen, "unified_bus");
}

int run_loopback(peerbus::bootstrap& boot, const options& chosen) {
  return run_over<peerbus::loopback>(boot, chosen, "loopback");
}

}  // namespace put_bench
