// SPDX-License-Identifier: MIT
// ctest: search timeout=86400
//
// A search for orders of messages that break an exchange: machines, exchanges and delays that a
// seed draws, with payload, as many as PEERBUS_SEARCH_SECONDS asks for, or PEERBUS_ORDERS, from the
// seed PEERBUS_SEED on.
#include <chrono>
#include <cstddef>
#include <cstdint>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/simulated.hpp>

#include "conformance/random_soak.hpp"
#include "simulated/support.hpp"
#include "support/oracle.hpp"
#include "support/search.hpp"

namespace orders_test {

TEST_CASE("exchanges and orders that a seed draws") {
  test::for_each_seed("PEERBUS_ORDERS", 400, [](std::uint64_t seed) {
    oracle::random from{seed};
    const std::size_t ranks = 1 + from.below(12);
    // From far below the latency of a message to far above the time of an operation.
    const std::chrono::nanoseconds jitter{std::int64_t{10} << from.below(16)};
    peerbus::simulation_options options = simulated_test::delayed(jitter, seed);
    options.platform = {
        .name = "drawn",
        .ports = {{"bus", 1}, {"card", 1 + from.below(3)}},
        .levels = {{"node", 1 + from.below(4), 100, 100, 1, 0}, {"network", 0, 1000, 10, 5, 1}},
        .near_levels = from.below(2)};
    CAPTURE(ranks);
    CAPTURE(jitter.count());
    const int worst_status = peerbus::run_simulated(
        ranks,
        [seed](peerbus::bootstrap& boot) {
          random_soak::communicator comm{peerbus::any_transport{peerbus::simulated{boot}}};
          random_soak::totals done;
          random_soak::serve_all(comm, seed, done);
        },
        options);
    CHECK(worst_status == 0);
  });
}

}  // namespace orders_test
