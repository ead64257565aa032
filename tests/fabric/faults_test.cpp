// SPDX-License-Identifier: MIT
// ctest: timeout=240
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <initializer_list>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/core/unique_fd.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/fabric.hpp>

#include "fabric/support.hpp"
#include "support/die_after.hpp"
#include "support/held_bootstrap.hpp"
#include "support/process.hpp"
#include "support/ranks.hpp"
#include "support/round.hpp"
#include "support/sanitized.hpp"
#include "support/tally.hpp"

// What cannot be set up, and what breaks while ranks talk: each rank gets an error that names the
// cause, well before its deadline of a minute, and the same processes can start again.

namespace faults_test {

namespace {

using peerbus::any_transport;
using peerbus::bootstrap;
using peerbus::deadline;
using peerbus::errc;
using peerbus::fabric;
using peerbus::fabric_options;
using peerbus::rank_id;
using peerbus::signal_id;
using std::chrono::seconds;
using std::chrono::steady_clock;

using communicator = peerbus::communicator<any_transport>;

constexpr peerbus::communicator_options patient{.timeout = std::chrono::minutes{1}};
constexpr seconds hang{30};

communicator over_fabric(bootstrap& boot, const fabric_options& chosen = {}) {
  return communicator{any_transport{fabric{boot, chosen}}, patient};
}

/// Every rank makes a `fabric` by `options_of(rank)`, which must throw `code` with all of
/// `fragments` on each of them. Then all of them make one that works, on the same bootstrap.
template <class OptionsOf>
void check_refused(OptionsOf&& options_of, errc code,
                   std::initializer_list<std::string_view> fragments) {
  const int worst_status = peerbus::run_local(2, [&](bootstrap& boot) {
    test::expect_error(code, fragments,
                       [&] { static_cast<void>(fabric{boot, options_of(boot.rank())}); });
    communicator again = over_fabric(boot);
    test::do_a_round(again);
  });
  CHECK(worst_status == 0);
}

/// Calls `end(fd)` for each TCP connection of this process. Returns for how many it was true.
template <class End>
int end_connections(End&& end) {
  int ended = 0;
  for (int fd = 3; fd < 1024; ++fd) {
    sockaddr_in peer{};
    socklen_t length = sizeof peer;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) == 0 &&
        peer.sin_family == AF_INET && end(fd))
      ++ended;
  }
  return ended;
}

/// Aborts all TCP connections of this process at both ends, as a firewall does. Returns how many
/// there were; 0 where the system does not let this process do so (it takes root and `ss -K`).
int abort_connections() {
  return end_connections([](int fd) {
    sockaddr_in own{};
    socklen_t length = sizeof own;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) != 0) return false;
    const std::string command =
        "ss -K state established '( sport = :" + std::to_string(ntohs(own.sin_port)) +
        " )' >/dev/null 2>&1";
    // `ss` ends well where the kernel refuses, too.
    tcp_info now{};
    length = sizeof now;
    return std::system(command.c_str()) == 0 &&
           ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &now, &length) == 0 &&
           now.tcpi_state == TCP_CLOSE;
  });
}

/// Aborts all TCP connections of this process, at this end. Returns how many there were.
int disconnect() {
  return end_connections([](int fd) {
    sockaddr none{};
    none.sa_family = AF_UNSPEC;
    return ::connect(fd, &none, sizeof none) == 0;
  });
}

/// Gives all TCP connections of this process up without a word to the other ends, as a host does
/// that is started anew. Returns how many there were; 0 where that takes rights that it lacks.
int forget_connections() {
  return end_connections([](int fd) {
    constexpr int on = 1;
    if (::setsockopt(fd, IPPROTO_TCP, TCP_REPAIR, &on, sizeof on) != 0) return false;
    const peerbus::unique_fd other{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    return ::dup2(other.get(), fd) == fd;
  });
}

/// A bootstrap that calls `meddle(boot, all)` with the result of each collective of a `fabric`.
template <class Meddle>
class meddling final : public test::held_bootstrap {
 public:
  meddling(bootstrap& held, Meddle meddle) : held_bootstrap{held}, meddle_{std::move(meddle)} {}
  [[nodiscard]] std::vector<contribution> allgather(contribution mine, deadline until,
                                                    std::string_view doing) override {
    auto all = held_bootstrap::allgather(std::move(mine), until, doing);
    if (doing == "fabric") meddle_(*this, all);
    return all;
  }

 private:
  Meddle meddle_;
};

/// Rank 1 has the result long after rank 0, as in a large group, and advances its transports
/// meanwhile.
void come_late(const bootstrap& boot, const std::vector<bootstrap::contribution>& /*all*/) {
  if (boot.rank() != rank_id{1}) return;
  const auto late = deadline::after(std::chrono::milliseconds{200});
  while (!late.expired()) static_cast<void>(boot.idle()->advance(std::chrono::milliseconds{1}));
}

/// Rank 0 gets another address of rank 1 than that which rank 1 has.
void change_address(const bootstrap& boot, std::vector<bootstrap::contribution>& all) {
  constexpr std::size_t key_and_family = 10;
  auto& address = all[1].bytes;
  if (boot.rank() != rank_id{0} || address.size() != key_and_family + 18) return;
  address[key_and_family] = std::byte{0};
  address[key_and_family + 1] = std::byte{1};  // Nobody listens at port 1.
}

}  // namespace

TEST_CASE("a peer that asks before this rank knows its address") {
  for (const char* provider : {fabric_test::connections, fabric_test::datagrams}) {
    const int worst_status = peerbus::run_local(2, [&](bootstrap& boot) {
      meddling late{boot, come_late};
      communicator comm = over_fabric(late, {.provider = provider});
      test::do_a_round(comm);
    });
    CHECK(worst_status == 0);
  }
}

TEST_CASE("a call that is refused is named on all ranks, soon") {
  const int worst_status = peerbus::run_local(3, [](bootstrap& boot) {
    meddling wrong{boot, change_address};
    const auto start = steady_clock::now();
    test::expect_error(errc::system,
                       {"connecting to rank 1 at 127.0.0.1 port 1: Connection refused"},
                       [&] { static_cast<void>(fabric{wrong}); });
    test::expect(steady_clock::now() - start < fabric_options{}.setup_timeout / 2,
                 "an error before the time limit");
  });
  CHECK(worst_status == 0);
}

TEST_CASE("a provider that is missing is named with the variable that may hide it") {
  ::setenv("FI_PROVIDER", "shm", 1);  // The ranks inherit it.
  check_refused([](rank_id) { return fabric_options{.provider = "no_such_provider"}; },
                errc::unsupported, {"no provider 'no_such_provider'", "FI_PROVIDER is 'shm'"});
  ::unsetenv("FI_PROVIDER");
}

// The next test starts this as a program of its own, because libfabric reads the environment as it
// is loaded.
TEST_CASE("fabric part: two ranks have one port" * doctest::skip()) {
  const std::string port = std::getenv("FI_TCP_PORT_LOW_RANGE");
  const int worst_status = peerbus::run_local(2, [&](bootstrap& boot) {
    test::expect_error(errc::system,
                       {"listen", "FI_TCP_PORT_LOW_RANGE to FI_TCP_PORT_HIGH_RANGE",
                        port + " to " + port, "more ports than there are ranks on this host"},
                       [&] { static_cast<void>(fabric{boot}); });
  });
  CHECK(worst_status == 0);
}

TEST_CASE("a range of ports that is too narrow is named on all ranks") {
  sockaddr_in free_one{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {}, .sin_zero = {}};
  socklen_t length = sizeof free_one;
  {
    const peerbus::unique_fd probe{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    auto* const address = reinterpret_cast<sockaddr*>(&free_one);
    REQUIRE(::bind(probe.get(), address, length) == 0);
    REQUIRE(::getsockname(probe.get(), address, &length) == 0);
  }
  const std::string port = std::to_string(ntohs(free_one.sin_port));
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  CHECK(std::system(("FI_TCP_PORT_LOW_RANGE=" + port + " FI_TCP_PORT_HIGH_RANGE=" + port + " '" +
                     program + "' --no-skip --minimal -tc='fabric part: two ranks have one port'")
                        .c_str()) == 0);
}

TEST_CASE("set-up that cannot work is refused by name on all ranks") {
  check_refused([](rank_id) { return fabric_options{.provider = "no_such_provider"}; },
                errc::unsupported, {"no provider 'no_such_provider'", "tcp;ofi_rxm"});
  check_refused([](rank_id) { return fabric_options{.domain = "no_such_interface"}; },
                errc::invalid_argument, {"no domain 'no_such_interface'", "lo"});
  check_refused([](rank_id) { return fabric_options{.stall_timeout = seconds{0}}; },
                errc::invalid_argument, {"stall_timeout is 0 ms"});
  check_refused([](rank_id) { return fabric_options{.queue_depth = 1}; }, errc::invalid_argument,
                {"queue_depth is 1"});
  // On one rank alone.
  check_refused(
      [](rank_id rank) {
        return rank == rank_id{1} ? fabric_options{.domain = "no_such_interface"}
                                  : fabric_options{};
      },
      errc::invalid_argument, {"no domain 'no_such_interface'"});
  check_refused(
      [](rank_id rank) {
        return fabric_options{.provider = rank == rank_id{0} ? fabric_test::connections
                                                             : fabric_test::datagrams};
      },
      errc::mismatch, {"provider", "tcp;ofi_rxm"});
}

TEST_CASE("libfabric gets no number of a standard stream in ranks without them") {
  const int worst_status = peerbus::run_local(2, [](bootstrap& boot) {
    test::close_standard_streams();
    communicator comm = over_fabric(boot);
    test::do_a_round(comm);
    test::expect_no_standard_streams();
  });
  CHECK(worst_status == 0);
}

// UndefinedBehaviorSanitizer looks at objects through a pipe, and finds all of them broken if there
// is no descriptor for it. It comes with AddressSanitizer here.
TEST_CASE("a rank that runs out of descriptors names the limit to all, at each step" *
          doctest::skip(test::has_address_sanitizer)) {
  bool has_worked = false;
  for (rlim_t left = 1; !has_worked && left < 100; ++left) {
    CAPTURE(left);
    const test::tally worked;
    const int worst_status = peerbus::run_local(3, [&](bootstrap& boot) {
      rlimit before{};
      ::getrlimit(RLIMIT_NOFILE, &before);
      if (boot.rank() == rank_id{left % 3}) {
        const int next = ::dup(STDIN_FILENO);
        ::close(next);
        const rlimit few{static_cast<rlim_t>(next) + left, before.rlim_max};
        ::setrlimit(RLIMIT_NOFILE, &few);
      }
      try {
        communicator comm = over_fabric(boot);
        test::do_a_round(comm);
        worked.add();
      } catch (const peerbus::error& caught) {
        test::expect_code(caught.code(), errc::system, "a lack of descriptors");
        const std::string text = caught.what();
        test::expect(text.find("ulimit -n") != std::string::npos, "the limit in '", text, "'");
      }
      ::setrlimit(RLIMIT_NOFILE, &before);
      static_cast<void>(boot.allgather({}, deadline::after(hang), "after the lack"));
      if (worked.count() != 0) return;
      communicator again = over_fabric(boot);
      test::do_a_round(again);
    });
    CHECK(worst_status == 0);
    has_worked = worked.count() == 3;
  }
  CHECK(has_worked);
}

TEST_CASE("a rank killed in the middle of a dispatch") {
  for (const std::size_t ranks : {2U, 3U, 4U}) {
    CAPTURE(ranks);
    const std::size_t victim = ranks - 1;
    const test::tally met;
    const test::tally told;
    const int worst_status = peerbus::run_local(ranks, [&](bootstrap& boot) {
      communicator comm = over_fabric(boot);
      test::do_a_round(comm);
      const peerbus::moe::exchange_config shape{
          .experts = 4, .hidden = 64, .top_k = 1, .max_tokens = 4};
      peerbus::moe::exchange moe{comm, shape, peerbus::codec::int8_per_token{}};
      if (comm.rank() == rank_id{victim}) {
        // Its counts are out, its rows never come.
        static_cast<void>(moe.dispatch_send({}, {std::span<const std::int32_t>{}, {}}));
        test::die_after(comm, met, ranks - 1);
      }
      met.add();
      const auto start = steady_clock::now();
      test::expect_error(errc::peer_dead, {"rank " + std::to_string(victim) + " died"}, [&] {
        for (;;) static_cast<void>(moe.dispatch({}, {std::span<const std::int32_t>{}, {}}));
      });
      test::expect(steady_clock::now() - start < hang, "an end well before the deadline");
      told.add();
    });
    CHECK(worst_status == 128 + SIGKILL);
    CHECK(told.count() == ranks - 1);
  }
}

TEST_CASE("large puts to a rank that is killed") {
  const test::tally met;
  const test::tally told;
  const int worst_status = peerbus::run_local(2, [&](bootstrap& boot) {
    communicator comm = over_fabric(boot);
    auto win = comm.make_window(std::size_t{32} << 20U, 1);
    comm.barrier();
    if (comm.rank() == rank_id{1}) test::die_after(comm, met, 1);
    met.add();
    const auto start = steady_clock::now();
    errc code = errc::ok;
    while (code == errc::ok && steady_clock::now() - start < hang) {
      code = win.put(rank_id{1}, 0, win.local());
      if (code == errc::ok) code = win.flush(rank_id{1});
    }
    test::expect_code(code, errc::peer_dead, "a put to a dead rank");
    told.add();
  });
  CHECK(worst_status == 128 + SIGKILL);
  CHECK(told.count() == 1);
}

TEST_CASE("a peer that has closed its end") {
  const int worst_status = peerbus::run_local(2, [&](bootstrap& boot) {
    {
      communicator comm = over_fabric(boot);
      auto win = comm.make_window(64, 1);
      comm.barrier();
      if (comm.rank() == rank_id{0}) {
        const auto until = deadline::after(seconds{30});
        errc code = errc::ok;
        for (std::uint64_t n = 1; code == errc::ok && !until.expired(); ++n)
          code = win.signal(rank_id{1}, signal_id{0}, n);
        test::expect_code(code, errc::unreachable, "a signal to a closed end");
        test::expect_code(win.wait(signal_id{0}, 1, until, rank_id{1}), errc::unreachable,
                          "a wait for a closed end");
        const std::string failures = comm.bus().describe_trouble();
        test::expect(failures.find("rank 1") != std::string::npos, "its name in '", failures, "'");
      }
    }
    communicator again = over_fabric(boot);
    test::do_a_round(again);
  });
  CHECK(worst_status == 0);
}

TEST_CASE("a child that a rank forks leaves the connections of the rank alone") {
  for (const char* const provider : {fabric_test::connections, fabric_test::datagrams}) {
    CAPTURE(provider);
    const int worst_status = peerbus::run_local(2, [&](bootstrap& boot) {
      communicator comm = over_fabric(boot, {.provider = provider});
      test::go_on_beside_a_child(comm);
    });
    CHECK(worst_status == 0);
  }
}

TEST_CASE("a peer that has closed its end because another died") {
  const test::tally met;
  const test::tally closed;
  const test::tally told;
  const int worst_status = peerbus::run_local(3, [&](bootstrap& boot) {
    {
      communicator comm = over_fabric(boot);
      auto win = comm.make_window(64, 1);
      comm.barrier();
      if (comm.rank() == rank_id{2}) test::die_after(comm, met, 2);
      met.add();
      if (comm.rank() == rank_id{0}) {
        while (closed.count() == 0) test::expect_ok(comm.bus().progress(), "progress");
        test::expect_code(win.signal(rank_id{1}, signal_id{0}, 1), errc::peer_dead,
                          "a signal to a rank that left because of a death");
        told.add();
        return;
      }
      test::expect_code(win.wait(signal_id{0}, 1, deadline::after(hang), rank_id{2}),
                        errc::peer_dead, "a wait for the dead rank");
    }
    closed.add();
    // A process that ends would be noticed as such.
    while (told.count() == 0 && boot.members()->state(rank_id{0}) == peerbus::rank_state::running)
      std::this_thread::yield();
  });
  CHECK(worst_status == 128 + SIGKILL);
  CHECK(told.count() == 1);
}

TEST_CASE("a peer that computes for long") {
  // Rank 0 fills its queue, gives up after its stall timeout, and says for whom it waited.
  const test::tally gave_up;
  const int worst_status = peerbus::run_local(2, [&](bootstrap& boot) {
    communicator comm = over_fabric(boot, {.stall_timeout = seconds{1}});
    auto win = comm.make_window(std::size_t{16} << 20U, 1);
    comm.barrier();
    if (comm.rank() == rank_id{0}) {
      errc code = errc::ok;
      for (int n = 0; code == errc::ok && n < 1000; ++n) code = win.put(rank_id{1}, 0, win.local());
      test::expect_code(code, errc::timed_out, "a put too many");
      const std::string failures = comm.bus().describe_trouble();
      test::expect(failures.find("no connection to rank 1") != std::string::npos, "its name in '",
                   failures, "'");
      gave_up.add();
    }
    // Rank 1 looks at nothing until rank 0 is through: in a collective it would.
    while (gave_up.count() == 0) std::this_thread::yield();
  });
  CHECK(worst_status == 0);
}

TEST_CASE("a call that waits for a rank that computes leaves the core to others") {
  const test::tally waits;
  const int worst_status = peerbus::run_local(2, [&](bootstrap& boot) {
    communicator comm = over_fabric(boot);
    auto win = comm.make_window(std::size_t{4} << 20U, 1);
    comm.barrier();
    if (comm.rank() == rank_id{0}) {
      const std::clock_t since = std::clock();  // The core's time.
      test::expect_ok(win.put(rank_id{1}, 0, win.local()), "put");
      waits.add();
      test::expect_ok(win.signal(rank_id{1}, signal_id{0}, 1), "a signal behind a put");
      const std::clock_t spent = std::clock() - since;
      test::expect(spent < CLOCKS_PER_SEC / 4, "it took ", spent * 1000 / CLOCKS_PER_SEC,
                   " ms of the core");
    } else {
      while (waits.count() == 0) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds{600});  // Computes.
      test::expect_ok(win.wait(signal_id{0}, 1, deadline::after(hang), rank_id{0}), "wait");
    }
    comm.barrier();
  });
  CHECK(worst_status == 0);
}

TEST_CASE("signals alone do not make quiet wait for a rank that computes") {
  const test::tally quiet;
  const int worst_status = peerbus::run_local(2, [&](bootstrap& boot) {
    communicator comm = over_fabric(boot, {.stall_timeout = seconds{1}});
    auto win = comm.make_window(64, 1);
    comm.barrier();
    if (comm.rank() == rank_id{0}) {
      test::expect_ok(win.signal(rank_id{1}, signal_id{0}, 1), "signal");
      test::expect_ok(comm.bus().quiet(), "quiet after a signal");
      test::expect_equal(comm.bus().describe_trouble(), std::string{}, "trouble");
      quiet.add();
    }
    // Rank 1 makes no call until rank 0 is through.
    while (quiet.count() == 0) std::this_thread::yield();
    test::expect_ok(comm.rank() == rank_id{1}
                        ? win.wait(signal_id{0}, 1, deadline::after(hang), rank_id{0})
                        : errc::ok,
                    "wait");
    comm.barrier();
  });
  CHECK(worst_status == 0);
}

/// What a rank calls after its connections broke, before the signal.
enum class called : std::uint8_t { nothing, flush, quiet, barrier };

/// Each provider with either of two.
struct pairing {
  const char* provider;
  bool second;
};
constexpr pairing all_pairs[]{{fabric_test::connections, false},
                              {fabric_test::connections, true},
                              {fabric_test::datagrams, false},
                              {fabric_test::datagrams, true}};

/// Rank 0 puts, its connections break, it calls `then`, and signals. If the signal comes, the put
/// is there.
void check_signal_after_break(const char* provider, std::size_t bytes, called then) {
  CAPTURE(provider);
  CAPTURE(bytes);
  CAPTURE(static_cast<int>(then));
  const test::tally cut;
  const test::tally visible;
  const int worst_status = peerbus::run_local(2, [&](bootstrap& boot) {
    communicator comm =
        over_fabric(boot, {.provider = provider, .stall_timeout = std::chrono::milliseconds{400}});
    auto win = comm.make_window(bytes, 1);
    comm.barrier();
    const auto meets = [&] {
      try {
        comm.barrier(deadline::after(std::chrono::milliseconds{800}));
        return true;
      } catch (const peerbus::error&) {
        return false;
      }
    };
    const auto expect_put = [&] {
      test::expect_equal(std::ranges::count(win.local(), std::byte{7}), std::ssize(win.local()),
                         "bytes that came before the signal");
    };
    if (comm.rank() == rank_id{0}) {
      std::ranges::fill(win.local(), std::byte{7});
      test::expect_ok(win.put(rank_id{1}, 0, win.local()), "put");
      if (abort_connections() == 0) MESSAGE("not tested: no connection could be aborted here");
      // Lets the provider notice, and connect again by itself.
      const auto looked = deadline::after(std::chrono::milliseconds{50});
      while (!looked.expired()) test::expect_ok(comm.bus().progress(), "progress");
      cut.add();
      if (then == called::flush) static_cast<void>(win.flush(rank_id{1}));
      if (then == called::quiet && comm.bus().quiet() == errc::ok) visible.add();
      if (then == called::barrier) static_cast<void>(meets());
      static_cast<void>(win.signal(rank_id{1}, signal_id{0}, 1));
    } else {
      while (cut.count() == 0) std::this_thread::yield();
      if (then == called::barrier && meets()) expect_put();
      if (win.wait(signal_id{0}, 1, deadline::after(std::chrono::milliseconds{800}), rank_id{0}) ==
          errc::ok)
        expect_put();
      if (visible.count() != 0) expect_put();
    }
  });
  CHECK(worst_status == 0);
}

TEST_CASE("a signal never comes without its put, also if the connection breaks between them") {
  for (const char* const provider : {fabric_test::connections, fabric_test::datagrams}) {
    check_signal_after_break(provider, 60'000, called::nothing);
    for (const called then : {called::nothing, called::quiet, called::barrier})
      check_signal_after_break(provider, 1'500'000, then);
  }
  // That a flush was ok proves nothing about what the provider of connections of its own delivers.
  check_signal_after_break(fabric_test::datagrams, 1'500'000, called::flush);
}

TEST_CASE("a connection that breaks is unreachable at both ends") {
  for (const std::size_t cutter : {0U, 1U}) {
    for (const pairing& each : all_pairs) {
      const char* const provider = each.provider;
      const bool is_bulk = each.second;
      CAPTURE(cutter);
      CAPTURE(provider);
      CAPTURE(is_bulk);
      const test::tally told;
      const int worst_status = peerbus::run_local(2, [&](bootstrap& boot) {
        {
          communicator comm = over_fabric(
              boot, {.provider = provider, .stall_timeout = std::chrono::milliseconds{500}});
          auto win = comm.make_window({.bytes = 80'000,
                                       .signals = 1,
                                       .traffic = is_bulk ? peerbus::traffic_class::bulk
                                                          : peerbus::traffic_class::latency});
          comm.barrier();
          const rank_id peer{1 - comm.rank().index()};
          const auto until = deadline::after(hang);
          errc code = errc::ok;
          for (std::uint64_t round = 1; code == errc::ok && round < 100'000; ++round) {
            if (round == 20 && comm.rank().index() == cutter)
              test::expect(disconnect() > 0, "a connection");
            code = win.put_signal(peer, 40'000, win.local().first(40'000), signal_id{0}, round);
            if (code == errc::ok) code = win.wait(signal_id{0}, round, until, peer);
          }
          test::expect_code(code, errc::unreachable, "a round over a broken connection");
        }
        told.add();
        // A process that ends would be noticed as such.
        const auto over = deadline::after(hang);
        while (told.count() < 2 && !over.expired()) std::this_thread::yield();
      });
      CHECK(worst_status == 0);
    }
  }
}

TEST_CASE("a rank that waits learns that the other end of a connection is gone without a word") {
  const test::tally told;
  const int worst_status = peerbus::run_local(2, [&](bootstrap& boot) {
    communicator comm = over_fabric(boot);
    auto win = comm.make_window(64, 1);
    comm.barrier();
    if (comm.rank() == rank_id{0}) {
      if (forget_connections() == 0) {
        MESSAGE("not tested: no connection could be given up here");
        test::expect_ok(win.signal(rank_id{1}, signal_id{0}, 1), "signal");
      }
      const auto over = deadline::after(hang);
      while (told.count() == 0 && !over.expired()) std::this_thread::yield();
    } else {
      const errc code = win.wait(signal_id{0}, 1, deadline::after(hang), rank_id{0});
      test::expect(code == errc::unreachable || win.value(signal_id{0}) == 1, "its end instead of ",
                   to_string(code));
      told.add();
    }
  });
  CHECK(worst_status == 0);
}

TEST_CASE("a notice lost with a connection ends that connection alone") {
  const char* const provider = fabric_test::datagrams;
  const test::tally given_up;
  const test::tally heard;
  const int worst_status = peerbus::run_local(3, [&](bootstrap& boot) {
    communicator comm = over_fabric(boot, {.provider = provider, .stall_timeout = seconds{2}});
    auto win = comm.make_window(64, 2);
    comm.barrier();
    const auto over = deadline::after(hang);
    if (comm.rank() == rank_id{0}) {
      if (abort_connections() == 0) MESSAGE("not tested: no connection could be aborted here");
      // The first is lost. The others come over the connection that the provider makes anew, and
      // would fill all buffers of rank 1.
      errc code = errc::ok;
      for (std::uint64_t n = 1; n <= 300 && code == errc::ok && given_up.count() == 0; ++n) {
        code = win.signal(rank_id{1}, signal_id{0}, n);
        for (int look = 0; look < 100; ++look) test::expect_ok(comm.bus().progress(), "progress");
      }
      while (heard.count() == 0 && !over.expired()) static_cast<void>(comm.bus().progress());
    } else if (comm.rank() == rank_id{1}) {
      static_cast<void>(win.wait(signal_id{0}, 300, deadline::after(seconds{10}), rank_id{0}));
      given_up.add();
      test::expect_ok(win.wait(signal_id{1}, 1, over, rank_id{2}),
                      "a wait for a rank whose connection is whole");
      heard.add();
    } else {
      while (given_up.count() == 0 && !over.expired()) static_cast<void>(comm.bus().progress());
      test::expect_ok(win.signal(rank_id{1}, signal_id{1}, 1), "a signal of that rank");
      while (heard.count() == 0 && !over.expired()) static_cast<void>(comm.bus().progress());
    }
  });
  CHECK(worst_status == 0);
}

TEST_CASE("puts to a rank that computes arrive when it next calls") {
  const test::tally sent;
  const int worst_status = peerbus::run_local(2, [&](bootstrap& boot) {
    communicator comm = over_fabric(boot);
    auto win = comm.make_window(std::size_t{4} << 20U, 1);
    comm.barrier();
    if (comm.rank() == rank_id{0}) {
      win.local().back() = std::byte{7};
      test::expect_ok(win.put_signal(rank_id{1}, 0, win.local(), signal_id{0}, 1), "put_signal");
      sent.add();
      test::expect_ok(win.flush(rank_id{1}), "flush");
    } else {
      while (sent.count() == 0) std::this_thread::yield();
      test::expect_ok(win.wait(signal_id{0}, 1, deadline::after(hang), rank_id{0}), "wait");
      test::expect(win.local().back() == std::byte{7}, "the last byte");
    }
    comm.barrier();
  });
  CHECK(worst_status == 0);
}

}  // namespace faults_test
