// SPDX-License-Identifier: MIT
// ctest: search serial timeout=86400
#include <csignal>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/tcp.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/transport/fabric.hpp>
#include <peerbus/transport/planes.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "bootstrap/support.hpp"
#include "fabric/support.hpp"
#include "support/held_bootstrap.hpp"
#include "support/kills.hpp"
#include "support/ranks.hpp"
#include "support/tally.hpp"

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

/// A bootstrap whose rank 2 ends when it is to meet its near ranks.
class ends_meeting final : public test::held_bootstrap {
 public:
  using held_bootstrap::held_bootstrap;

 private:
  [[nodiscard]] std::unique_ptr<bootstrap> make_subgroup(const std::vector<peerbus::rank_id>& ranks,
                                                         peerbus::rank_id member,
                                                         peerbus::deadline until) override {
    if (rank() == peerbus::rank_id{2}) ::raise(SIGKILL);
    return held_bootstrap::make_subgroup(ranks, member, until);
  }
};

}  // namespace

TEST_CASE("planes: a rank that ends while near ranks meet is named to all") {
  const test::tally told;
  const int worst_status = on_two_hosts::run(6, [&](peerbus::bootstrap& boot) {
    ends_meeting met{boot};
    test::expect_error(peerbus::errc::peer_dead, {"rank 2 died"}, [&] {
      static_cast<void>(peerbus::planes<peerbus::unified_bus, peerbus::fabric>{met});
    });
    told.add();
  });
  CHECK(worst_status == 128 + SIGKILL);
  CHECK(told.count() == 5);
}

TEST_CASE("fabric: a rank ends at a random moment, again and again") {
  SUBCASE("met on one host") { kills::check_many<peerbus::fabric, test::as_local>(5); }
  SUBCASE("met over TCP") { kills::check_many<peerbus::fabric, test::over_tcp>(5); }
}

TEST_CASE("planes: a rank ends at a random moment, again and again") {
  kills::check_many<peerbus::planes<peerbus::unified_bus, peerbus::fabric>, on_two_hosts>(6);
}

}  // namespace hosts_kills_test
