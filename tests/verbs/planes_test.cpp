// SPDX-License-Identifier: MIT
// ctest: timeout=400
#include <cstddef>
#include <string>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/planes.hpp>
#include <peerbus/transport/unified_bus.hpp>
#include <peerbus/transport/verbs.hpp>

#include "conformance/planes_suite.hpp"
#include "conformance/window_suite.hpp"
#include "verbs/support.hpp"

namespace planes_test {

using peerbus::bootstrap;
using peerbus::rank_id;
using peerbus::verbs;

TEST_CASE("the semantics of windows, among two and three hosts") {
  using two_hosts =
      test::any_over<peerbus::any_transport, test::processes_over<conformance::hosts<verbs, 2>>>;
  const std::string before = verbs_test::resources();
  for (const std::size_t n : {1U, 3U, 4U, 5U}) {
    conformance::check_windows_of_planes<verbs>(n);
    conformance::check_fetch_add<two_hosts>(n);
  }
  conformance::check_short_waits<two_hosts>(3);
  CHECK(verbs_test::resources() == before);
}

TEST_CASE("dispatch and combine, near rows by stores and far ones by RDMA") {
  for (const std::size_t n : {2U, 4U, 5U}) conformance::check_rows_of_planes<verbs>(n);
}

TEST_CASE("a signal of either plane wakes a process that sleeps") {
  conformance::check_sleeper_of_planes<verbs>();
}

TEST_CASE("a child that a rank forks leaves the planes of the rank alone") {
  conformance::check_fork_in_planes<verbs>();
}

TEST_CASE("a rank killed ends the waits of near and far ranks") {
  for (const std::size_t victim : {0U, 3U}) {
    const std::string before = verbs_test::resources();
    conformance::check_death_in_planes<verbs>(rank_id{victim});
    CHECK(verbs_test::resources() == before);
  }
}

TEST_CASE("a host without others needs no device") {
  const int worst_status = peerbus::run_local(3, [](bootstrap& boot) {
    using planes = peerbus::planes<peerbus::unified_bus, verbs>;
    const std::string before = verbs_test::resources();
    peerbus::communicator comm{planes{boot}};
    test::expect(!comm.bus().has_far(), "no far plane");
    comm.barrier();
    test::expect_equal(verbs_test::resources(), before, "resources of the device");
    comm.barrier();
  });
  CHECK(worst_status == 0);
}

}  // namespace planes_test
