// SPDX-License-Identifier: MIT
// ctest: search serial timeout=86400
#include <chrono>
#include <cstddef>
#include <string>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/tcp.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/transport/fabric.hpp>
#include <peerbus/transport/planes.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "bootstrap/support.hpp"
#include "fabric/support.hpp"
#include "support/kills.hpp"

namespace hosts_kills_test {

namespace {

/// Ranks of two pretended hosts, which meet over TCP as a mesh.
struct on_two_hosts {
  template <class F>
  static int run(std::size_t n, F f) {
    const auto port = test::free_tcp_port();
    return test::run_each(
        n,
        [&](std::size_t rank) {
          auto seat = test::tcp_seat(rank, n, port);
          seat.host = "host " + std::to_string(rank % 2);
          seat.mesh = true;
          return peerbus::tcp_bootstrap{seat, test::patience()};
        },
        f);
  }
};

using planes = peerbus::planes<peerbus::unified_bus, peerbus::fabric>;

}  // namespace

TEST_CASE("planes: a rank that ends while near ranks meet is named to all") {
  for (int step = 0; step < 16; ++step) {
    CAPTURE(step);
    kills::check<planes, on_two_hosts>({.seed = 39,
                                        .ranks = 6,
                                        .victim = peerbus::rank_id{2},
                                        .where = kills::moment::set_up,
                                        .what = kills::trouble::none,
                                        .turn = 0,
                                        .delay = std::chrono::microseconds{250 * step},
                                        .request = 0});
  }
}

TEST_CASE("fabric: a rank ends at a random moment, again and again") {
  SUBCASE("met on one host") { kills::check_many<peerbus::fabric, test::as_local>(8); }
  SUBCASE("met over TCP") { kills::check_many<peerbus::fabric, test::over_tcp>(8); }
}

TEST_CASE("planes: a rank ends at a random moment, again and again") {
  kills::check_many<planes, on_two_hosts>(8);
}

}  // namespace hosts_kills_test
