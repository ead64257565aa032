// SPDX-License-Identifier: MIT
#include <optional>
#include <utility>

#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/loopback.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "ep_bench/measured_exchange.hpp"
#include "ep_bench/plane_tally.hpp"
#include "ep_bench/rank_impl.hpp"
#include "support/networks.hpp"

namespace ep_bench {

namespace {

template <class Far>
std::optional<moved_by_planes> moved_over(peerbus::any_transport& bus) noexcept {
  const auto* const planes = bus.find_held<bench::hosts_over<Far>>();
  if (planes == nullptr) return std::nullopt;
  return moved_by_planes{planes->near_traffic(), planes->far_traffic()};
}

}  // namespace

std::optional<moved_by_planes> moved_by([[maybe_unused]] peerbus::any_transport& bus) noexcept {
#if PEERBUS_BENCH_FABRIC
  if (const auto moved = moved_over<peerbus::fabric>(bus)) return moved;
#endif
#if PEERBUS_BENCH_VERBS
  if (const auto moved = moved_over<peerbus::verbs>(bus)) return moved;
#endif
  return std::nullopt;
}

int run_unified_bus(peerbus::bootstrap& boot, const options& chosen, placement how,
                    const delivery& deliver) {
  peerbus::unified_bus bus{boot};
  if (is_built_in(chosen)) return run_rank(boot, chosen, how, deliver, std::move(bus));
  return run_rank(boot, chosen, how, deliver, peerbus::any_transport{std::move(bus)});
}

int run_loopback(peerbus::bootstrap& boot, const options& chosen, placement how,
                 const delivery& deliver) {
  return run_rank(boot, chosen, how, deliver, peerbus::any_transport{peerbus::loopback{boot}});
}

int run_network(peerbus::bootstrap& boot, const options& chosen, placement how,
                const delivery& deliver) {
  return bench::over_network(boot, chosen, chosen.transport, "ep_bench", [&](auto bus) {
    return run_rank(boot, chosen, how, deliver, peerbus::any_transport{std::move(bus)});
  });
}

}  // namespace ep_bench
