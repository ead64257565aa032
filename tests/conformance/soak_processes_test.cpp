// SPDX-License-Identifier: MIT
// ctest: search timeout=86400 serial
#include <array>

#include <doctest/doctest.h>

#include <peerbus/transport/loopback.hpp>
#include <peerbus/transport/unified_bus.hpp>

#ifdef PEERBUS_TEST_FABRIC
#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/transport/fabric.hpp>
#endif

#include "bootstrap/support.hpp"
#include "conformance/random_soak.hpp"
#include "conformance/soak.hpp"
#include "support/grouped.hpp"
#include "support/ranks.hpp"
#include "support/search.hpp"

namespace soak_processes_test {

#ifdef PEERBUS_TEST_FABRIC
struct datagrams : peerbus::basic_fabric<> {
  explicit datagrams(peerbus::bootstrap& boot) : basic_fabric{boot, {.provider = "tcp;ofi_rxm"}} {}
};
#endif

TEST_CASE("unified_bus: 160 000 operations in a row, a tenth under a sanitizer") {
  conformance::check_soak<test::processes_over<peerbus::unified_bus>>(
      2, test::soak_repetitions(80'000));
}

TEST_CASE("transports with faults: groups that a seed draws") {
  using random_soak::carrier;
  using test::as_local;
  using test::as_threads;
  std::array over{
      carrier::of<peerbus::unified_bus, as_local>("unified_bus"),
      carrier::of<peerbus::loopback, as_threads>("loopback"),
      carrier::of<test::lazy_planes<2>, as_threads>("planes over loopback"),
#ifdef PEERBUS_TEST_FABRIC
      carrier::of<peerbus::fabric, as_local>("fabric over tcp"),
      carrier::of<datagrams, as_local>("fabric over tcp;ofi_rxm"),
      carrier::of<test::grouped<peerbus::unified_bus, peerbus::fabric, 2>, as_local>(
          "planes over unified_bus and fabric"),
#else
      carrier{"fabric over tcp", nullptr, nullptr},
      carrier{"fabric over tcp;ofi_rxm", nullptr, nullptr},
      carrier{"planes over unified_bus and fabric", nullptr, nullptr},
#endif
  };
#ifdef PEERBUS_TEST_FABRIC
  peerbus::fabric::prepare();  // Once, and not in each process.
#endif
  random_soak::check(over, 30);
}

}  // namespace soak_processes_test
