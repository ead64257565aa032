// SPDX-License-Identifier: MIT
// ctest: timeout=200
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/transport/verbs.hpp>

#include "support/process.hpp"
#include "support/ranks.hpp"
#include "verbs/support.hpp"

// Ranks that cannot connect, or not as they were told: all get the same kind of error, and a second
// try on the same bootstrap works. Nothing is left in the kernel.

namespace {

using peerbus::bootstrap;
using peerbus::deadline;
using peerbus::errc;
using peerbus::rank_id;
using peerbus::verbs;
using peerbus::verbs_options;

/// `ranks` ranks of which the last, or all, are given `bad`.
void check_refused(const verbs_options& bad, errc code, const std::vector<std::string>& fragments) {
  const std::string before = verbs_test::resources();
  for (const std::size_t ranks : {1U, 3U})
    for (const bool all : {true, false}) {
      CAPTURE(ranks);
      const int worst_status = peerbus::run_local(ranks, [&](bootstrap& boot) {
        const bool mine = all || boot.rank().index() == boot.size() - 1;
        test::expect_error(code, {"verbs"}, [&] { verbs{boot, mine ? bad : verbs_options{}}; });
        if (mine)
          for (const std::string& part : fragments)
            test::expect_error(code, {part}, [&] { verbs{boot, bad}; });
        else
          for (std::size_t i = 0; i < fragments.size(); ++i)
            test::expect_error(code, {}, [&] { verbs{boot}; });
        peerbus::communicator<verbs> comm{verbs{boot}};
        comm.barrier();
      });
      CHECK(worst_status == 0);
    }
  CHECK(verbs_test::resources() == before);
}

/// Without this the limit counts for nothing. Before a device is opened, as the kernel refuses to
/// go on with it under other credentials.
void obey_lock_limit() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, 2> sets{};
  test::expect_equal(::syscall(SYS_capget, &header, sets.data()), 0, "capget");
  sets[CAP_IPC_LOCK / 32].effective &= ~(1U << (CAP_IPC_LOCK % 32));
  test::expect_equal(::syscall(SYS_capset, &header, sets.data()), 0, "capset");
}

void set_lock_limit(std::size_t bytes) {
  const rlimit limit{bytes, bytes};
  test::expect_equal(::setrlimit(RLIMIT_MEMLOCK, &limit), 0, "setrlimit");
}

}  // namespace

TEST_CASE("devices, ports and addresses that do not exist") {
  check_refused({.device = "nonesuch0"}, errc::invalid_argument,
                {"expected device 'nonesuch0'", "there are: "});
  check_refused({.port = 9}, errc::invalid_argument, {"expected port 9"});
  check_refused({.gid_index = 200}, errc::invalid_argument, {"expected GID index 200"});
}

TEST_CASE("options that are impossible") {
  check_refused({.gid_index = 256}, errc::invalid_argument, {"gid_index is 256"});
  check_refused({.queue_pairs_per_peer = 0}, errc::invalid_argument,
                {"queue_pairs_per_peer is 0, expected 1 to 9"});
  check_refused({.stall_timeout = std::chrono::milliseconds{-1}}, errc::invalid_argument,
                {"stall_timeout is -1 ms"});
  check_refused({.queue_depth = 1}, errc::invalid_argument, {"queue_depth is 1"});
  check_refused({.retries = 8}, errc::invalid_argument, {"retries is 8, expected 0 to 7"});
  check_refused({.service_level = 16}, errc::invalid_argument,
                {"service_level is 16, expected 0 to 15"});
  check_refused({.traffic_class = 256}, errc::invalid_argument,
                {"traffic_class is 256, expected 0 to 255"});
  check_refused({.bulk_service_level = 16}, errc::invalid_argument,
                {"bulk_service_level is 16, expected -1 to 15"});
  check_refused({.bulk_traffic_class = -2}, errc::invalid_argument,
                {"bulk_traffic_class is -2, expected -1 to 255"});
  check_refused({.bulk_slice = 4095}, errc::invalid_argument, {"bulk_slice is 4095"});
  check_refused({.bulk_slice = 8192, .bulk_in_flight = 4096}, errc::invalid_argument,
                {"bulk_in_flight is 4096", "8192"});
}

TEST_CASE("ranks that differ") {
  const int worst_status = peerbus::run_local(3, [](bootstrap& boot) {
    const bool odd = boot.rank() == rank_id{2};
    test::expect_error(errc::mismatch, {"queue pairs per peer is 1 on rank 0 but 2 on rank 2"},
                       [&] { verbs{boot, {.queue_pairs_per_peer = odd ? 2U : 1U}}; });
    // A rank of another build of the library, as far as the others can tell.
    test::expect_error(errc::mismatch, {"protocol version is", "on rank 0 but 999 on rank 2"}, [&] {
      if (!odd) verbs{boot};
      const std::vector<peerbus::declared> other{{"protocol version", 999},
                                                 {"byte order", "little-endian"},
                                                 {"queue pairs per peer", 1},
                                                 {"link layer", "Ethernet"}};
      peerbus::agree(boot, "verbs", other, deadline::after(std::chrono::seconds{30}));
    });
    verbs bus{boot};
    const auto until = deadline::after(std::chrono::seconds{30});
    test::expect_error(errc::mismatch, {"window", "of 64 bytes and 1 signals", "of 128"},
                       [&] { static_cast<void>(bus.make_window({odd ? 128U : 64U, 1}, until)); });
    static_cast<void>(bus.make_window({64, 1}, until));
  });
  CHECK(worst_status == 0);
}

TEST_CASE("a rank that does not come is named") {
  const int worst_status = peerbus::run_local(3, [](bootstrap& boot) {
    if (boot.rank() == rank_id{1}) {
      // Comes too late, to learn that the others have given up.
      std::this_thread::sleep_for(std::chrono::milliseconds{1500});
      test::expect_error(errc::timed_out, {"rank 1 of 3 did not come within"},
                         [&] { verbs{boot}; });
    } else {
      test::expect_error(errc::timed_out, {"rank 1 of 3 did not come within"},
                         [&] { verbs{boot, {.setup_timeout = std::chrono::seconds{1}}}; });
    }
  });
  CHECK(worst_status == 0);
}

TEST_CASE("too little memory may be locked") {
  const std::string before = verbs_test::resources();
  for (const std::size_t ranks : {1U, 3U}) {
    const int worst_status = peerbus::run_local(ranks, [](bootstrap& boot) {
      const bool mine = boot.rank().index() == boot.size() - 1;
      if (mine) obey_lock_limit();
      peerbus::communicator<verbs> comm{verbs{boot}};
      if (mine) set_lock_limit(std::size_t{1} << 20U);
      test::expect_error(errc::out_of_memory, {"cannot register 33554432 bytes", "ulimit -l"},
                         [&] { static_cast<void>(comm.make_window(std::size_t{32} << 20U, 1)); });
      // What fits, fits.
      static_cast<void>(comm.make_window(4096, 1));
      if (mine) set_lock_limit(0);
      test::expect_error(errc::out_of_memory, {"may lock 0 KiB"},
                         [&] { static_cast<void>(comm.make_window(std::size_t{1} << 20U, 1)); });
      comm.barrier();
    });
    CHECK(worst_status == 0);
  }
  CHECK(verbs_test::resources() == before);
}

TEST_CASE("what a process takes, it gives back") {
  const int worst_status = peerbus::run_local(2, [](bootstrap& boot) {
    const auto once = [&boot] {
      peerbus::communicator<verbs> comm{verbs{boot}};
      auto win = comm.make_window(4096, 4);
      comm.barrier();
    };
    once();
    const std::size_t before = test::open_files();
    for (int i = 0; i < 10; ++i) once();
    test::expect_equal(test::open_files(), before, "open descriptors");
  });
  CHECK(worst_status == 0);
}

TEST_CASE("no active port") {
  if (std::system("ip link show v0 >/dev/null 2>&1") != 0) {
    MESSAGE("not tested: a port that is down (it needs the guest's device)");
    return;
  }
  verbs_test::shell("ip link set v0 down");
  const int worst_status = peerbus::run_local(2, [](bootstrap& boot) {
    test::expect_error(errc::invalid_argument, {"port 1 is down"},
                       [&] { verbs{boot, {.device = "rxe0"}}; });
  });
  verbs_test::shell("ip link set v0 up");
  CHECK(worst_status == 0);
}
