// SPDX-License-Identifier: MIT
#include "ep_bench/topology.hpp"

#if PEERBUS_BENCH_HWLOC

#include <cstddef>
#include <cstdio>
#include <string>

#include <peerbus/bootstrap/local.hpp>
#include <peerbus/bootstrap/threads.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/topology/placement.hpp>
#include <peerbus/transport/loopback.hpp>
#include <peerbus/transport/unified_bus.hpp>

namespace ep_bench {
namespace {

/// Any size shows whether memory can be bound.
constexpr std::size_t window_bytes = std::size_t{4} << 20;

template <class Transport>
void place_and_print(peerbus::bootstrap& boot, const options& chosen) {
  const peerbus::topology::placement here{boot, {.pin = chosen.pin.value_or(true)}};
  peerbus::communicator comm{Transport{boot, {}, here.on_memory()}};
  comm.order_peers(here.peer_order());
  const auto window = comm.make_window(window_bytes, 0);
  comm.barrier();
  const auto lines = here.report(boot, comm.default_deadline());
  if (boot.rank().index() == 0)
    for (const std::string& line : lines) std::printf("%s\n", line.c_str());
}

}  // namespace

int print_topology(const options& chosen) {
  const auto body = [&](peerbus::bootstrap& boot) { print_topology(boot, chosen); };
  return chosen.transport == "loopback" ? peerbus::run_threads(chosen.ranks, body)
                                        : peerbus::run_local(chosen.ranks, body);
}

void print_topology(peerbus::bootstrap& boot, const options& chosen) {
  if (boot.addresses() == peerbus::address_space::shared)
    place_and_print<peerbus::loopback>(boot, chosen);
  else
    place_and_print<peerbus::unified_bus>(boot, chosen);
}

}  // namespace ep_bench

#else

#include <cstdio>

namespace ep_bench {
namespace {

void say_that_it_is_not_known() {
  std::puts(
      "the topology is not known: this ep_bench was built without hwloc (Debian: libhwloc-dev)");
}

}  // namespace

int print_topology(const options&) {
  say_that_it_is_not_known();
  return 0;
}

void print_topology(peerbus::bootstrap& boot, const options&) {
  if (boot.rank().index() == 0) say_that_it_is_not_known();
}

}  // namespace ep_bench

#endif
