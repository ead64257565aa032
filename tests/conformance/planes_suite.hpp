// SPDX-License-Identifier: MIT
#pragma once

#include <signal.h>

#include <chrono>
#include <cstddef>
#include <cstdint>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/core/wait_readable.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "conformance/exchange_suite.hpp"
#include "conformance/window_suite.hpp"
#include "support/die_after.hpp"
#include "support/grouped.hpp"
#include "support/ranks.hpp"
#include "support/round.hpp"
#include "support/tally.hpp"

// Two planes whose far one is a network: processes of a pretended host share memory, and reach
// those of the others by `Far`.

namespace conformance {

template <class Far, std::size_t Hosts>
using hosts = test::grouped<peerbus::unified_bus, Far, Hosts>;

/// The semantics of windows among two and three hosts of `n` ranks.
template <class Far>
void check_windows_of_planes(std::size_t n) {
  using any_hosts = test::any_over<peerbus::any_transport, test::processes_over<hosts<Far, 2>>,
                                   test::processes_over<hosts<Far, 3>>>;
  check_fresh_windows<any_hosts>(n);
  check_all_to_all<any_hosts>(n);
  check_get<any_hosts>(n);
  check_ranges<any_hosts>(n);
  check_signals<any_hosts>(n);
  check_stream<any_hosts>(n);
  check_barrier<any_hosts>(n, 50);
  check_many_windows<any_hosts>(n);
}

/// Dispatch and combine, near rows by stores and far ones by requests.
template <class Far>
void check_rows_of_planes(std::size_t n) {
  check_shapes<test::processes_over<hosts<Far, 2>>, peerbus::codec::int8_per_token>(n);
}

/// A signal of either plane wakes a process that sleeps.
template <class Far>
void check_sleeper_of_planes() {
  const int worst_status = peerbus::run_local(3, [](peerbus::bootstrap& boot) {
    constexpr peerbus::signal_id id{0};
    constexpr peerbus::rank_id sleeper{0};
    hosts<Far, 2> bus{boot};
    const auto until = peerbus::deadline::after(std::chrono::seconds{60});
    auto win = bus.make_window({.bytes = 0, .signals = 1}, until);
    for (std::uint64_t n = 1; n <= 6; ++n) {
      if (boot.rank() == sleeper) test::expect(bus.arm(), "armed");
      static_cast<void>(boot.allgather({}, until, "armed"));
      if (boot.rank().index() == 1 + n % 2)
        test::expect_ok(bus.signal(sleeper, win, id, n), "signal");
      if (boot.rank() == sleeper) {
        peerbus::detail::wait_readable(bus.arrival_fd(), until);
        bus.disarm();
        test::expect_equal(bus.value(win, id), n, "the signal that woke");
      }
      static_cast<void>(boot.allgather({}, until, "woken"));
    }
  });
  CHECK(worst_status == 0);
}

/// A child that a rank forks destroys its copies of everything, and the ranks go on.
template <class Far>
void check_fork_in_planes() {
  const int worst_status = peerbus::run_local(4, [&](peerbus::bootstrap& boot) {
    peerbus::communicator comm{hosts<Far, 2>{boot}};
    test::go_on_beside_a_child(comm);
  });
  CHECK(worst_status == 0);
}

/// A rank that is killed ends the waits of near and far ranks.
template <class Far>
void check_death_in_planes(peerbus::rank_id victim) {
  const test::tally met;
  const test::tally told;
  const int worst_status = peerbus::run_local(4, [&](peerbus::bootstrap& boot) {
    peerbus::communicator comm{hosts<Far, 2>{boot}};
    auto win = comm.make_window(4096, 1);
    comm.barrier();
    if (comm.rank() == victim) test::die_after(comm, met, 3);
    met.add();
    const auto until = peerbus::deadline::after(std::chrono::seconds{60});
    test::expect_code(win.wait(peerbus::signal_id{0}, 1, until, victim), peerbus::errc::peer_dead,
                      "wait");
    told.add();
  });
  CHECK(worst_status == 128 + SIGKILL);
  CHECK(told.count() == 3);
}

}  // namespace conformance
