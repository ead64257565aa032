// SPDX-License-Identifier: MIT
// ctest: tsan
#include <poll.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/threads.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/loopback.hpp>
#include <peerbus/transport/planes.hpp>
#include <peerbus/transport/refinements.hpp>

#include "support/grouped.hpp"
#include "support/indirect.hpp"
#include "support/mailed.hpp"
#include "support/ranks.hpp"

namespace planes_test {

namespace {

using peerbus::bootstrap;
using peerbus::deadline;
using peerbus::errc;
using peerbus::rank_id;
using peerbus::signal_id;
using test::expect;
using test::expect_code;
using test::expect_equal;
using test::expect_ok;

using lazy = peerbus::planes<peerbus::loopback, test::indirect<peerbus::loopback>>;
using mailed = peerbus::planes<peerbus::loopback, test::mailed>;

deadline soon() { return deadline::after(std::chrono::seconds{60}); }

/// A near plane that cannot be made over a group of one host's ranks, as if they were on several.
class no_shared_memory : public peerbus::loopback {
 public:
  explicit no_shared_memory(bootstrap& boot) : basic_loopback{boot} {
    if (boot.size() > 1) throw peerbus::error{errc::unsupported, "no common memory here"};
  }
};

/// A far plane whose device is out of memory on rank 1.
class full_device : public peerbus::loopback {
 public:
  using basic_loopback::basic_loopback;
  [[nodiscard]] window adopt_window(peerbus::window_memory memory, deadline until) {
    std::optional<peerbus::error> objection;
    if (boot().rank() == rank_id{1} && memory.data.size() > 1000)
      objection = peerbus::error{errc::out_of_memory, "this process may lock 1 KiB"};
    peerbus::agree(boot(), "registration", {}, until, objection);
    return basic_loopback::adopt_window(std::move(memory), until);
  }
};

/// A far plane whose arrivals wake nobody, as over a provider without a descriptor.
class silent : public test::mailed {
 public:
  using mailed::mailed;
  [[nodiscard]] int arrival_fd() const noexcept { return -1; }
  [[nodiscard]] bool arm() noexcept { return false; }
};

/// A plane that has to be asked for arrivals, and has no call that says so.
class mute : public test::mailed {
 public:
  using mailed::mailed;
  static constexpr peerbus::transport_refinements refines{.adopt_window = true};
  [[nodiscard]] int arrival_fd() const noexcept = delete;
  [[nodiscard]] bool arm() noexcept = delete;
  void disarm() noexcept = delete;
  [[nodiscard]] errc health(std::optional<rank_id> awaited) noexcept = delete;
};

/// A plane whose link to rank 1 is broken.
class cut_off : public test::mailed {
 public:
  using mailed::mailed;
  [[nodiscard]] errc health(std::optional<rank_id> awaited) noexcept {
    return awaited == rank_id{1} && awaited != boot().rank() ? errc::unreachable
                                                             : mailed::health(awaited);
  }
};

/// A far plane that counts how often it is looked at.
class counted_polls : public test::mailed {
 public:
  using mailed::mailed;
  [[nodiscard]] std::uint64_t value(const window& from, signal_id id) const noexcept {
    ++*polls_;
    return mailed::value(from, id);
  }
  [[nodiscard]] std::uint64_t polls() const noexcept { return *polls_; }

 private:
  std::shared_ptr<std::uint64_t> polls_ = std::make_shared<std::uint64_t>(0);
};

/// Spins for long, whatever the machine.
struct long_spin {
  static constexpr std::uint32_t rounds = 8000;
  [[nodiscard]] peerbus::wait_thresholds thresholds(std::size_t, std::size_t) const noexcept {
    return {rounds, 0, 0, std::chrono::milliseconds{2}};
  }
};

std::string host_of(const bootstrap& boot, std::size_t groups) {
  return "host " + std::to_string(boot.rank().index() % groups);
}

/// Ranks of two racks, and of hosts of one rank, or two, within them.
template <class Inner>
class racks : public peerbus::planes<peerbus::planes<peerbus::loopback, Inner>, test::mailed> {
  using rack = peerbus::planes<peerbus::loopback, Inner>;

 public:
  explicit racks(bootstrap& boot)
      : racks::planes{boot,
                      {.group = boot.rank().index() < boot.size() / 2 ? "rack 0" : "rack 1"},
                      [](bootstrap& group) { return rack{group, {.group = host_of(group, 2)}}; },
                      [](bootstrap& all) { return test::mailed{all}; }} {}
};

}  // namespace

TEST_CASE("near ranks are those of the group, and only they have memory that loads and stores") {
  const int worst_status = peerbus::run_threads(5, [](bootstrap& boot) {
    peerbus::communicator comm{lazy{boot, {.group = host_of(boot, 2)}}};
    expect(comm.bus().has_far(), "a far plane");
    auto win = comm.make_window(64, 1);
    std::size_t near = 0;
    for (const rank_id peer : comm.peers()) {
      const bool is_near = peer.index() % 2 == comm.rank().index() % 2;
      expect_equal(win.find_peer(peer).data() != nullptr, is_near, "memory of a near rank");
      near += is_near ? 1 : 0;
    }
    expect_equal(comm.bus().near_ranks().size(), near + 1, "near ranks");
    comm.barrier();
  });
  CHECK(worst_status == 0);
}

TEST_CASE("a group of everyone needs no far plane: the ranks of a host, and a name they share") {
  const int worst_status = peerbus::run_threads(3, [](bootstrap& boot) {
    for (const std::string name : {"", "all"}) {
      const auto no_far = [](bootstrap&) -> test::mailed { throw std::logic_error{"was made"}; };
      mailed bus{
          boot, {.group = name}, [](bootstrap& group) { return peerbus::loopback{group}; }, no_far};
      expect(!bus.has_far(), "no far plane");
      expect(bus.capabilities().any_local_memory, "puts from any memory");
      peerbus::communicator comm{std::move(bus)};
      auto win = comm.make_window(4096, 0);
      expect_equal(comm.bus().adopted_bytes(), 0U, "adopted bytes");
      const std::uint64_t messages = comm.bus().near_traffic().messages;
      std::uint64_t before = 0;
      expect_ok(win.fetch_add(rank_id{0}, 0, 1, before), "fetch_add");
      expect_equal(comm.bus().near_traffic().messages, messages + 1, "messages with an atomic");
      comm.barrier();
    }
  });
  CHECK(worst_status == 0);
}

TEST_CASE("each plane counts its bytes and messages, and says what the far one keeps") {
  const int worst_status = peerbus::run_threads(4, [](bootstrap& boot) {
    lazy bus{boot, {.group = host_of(boot, 2)}};
    auto win = bus.make_window({.bytes = 640, .signals = 4}, soon());
    expect_equal(bus.adopted_bytes(), 640U, "adopted bytes");
    const auto source = std::as_bytes(bus.local(win)).subspan(320, 24);
    const auto mine = static_cast<signal_id>(boot.rank().index());
    const auto offset = boot.rank().index() * 64;
    for (const rank_id peer : peerbus::all_ranks{4}) {
      expect_ok(bus.put_signal(peer, win, offset, source, mine, 1), "put_signal");
      const peerbus::put_piece pieces[] = {{offset, source}, {offset, source.first(8)}};
      expect_ok(bus.put_run(peer, win, pieces), "put_run");
    }
    std::vector<rank_id> all;
    for (const rank_id peer : peerbus::all_ranks{4}) all.push_back(peer);
    expect_ok(bus.signal_each(all, win, mine, 2), "signal_each");
    expect_code(bus.put(rank_id{1}, win, 639, source), errc::out_of_range, "put");
    expect_equal(bus.near_traffic().bytes, 2U * (24 + 24 + 8), "near bytes");
    expect_equal(bus.near_traffic().messages, 2U * (1 + 2 + 1), "near messages");
    expect_equal(bus.far_traffic().bytes, 2U * (24 + 24 + 8), "far bytes");
    expect_equal(bus.far_traffic().messages, 2U * (1 + 2 + 1), "far messages");
    for (const rank_id peer : peerbus::all_ranks{4})
      expect_ok(bus.wait(win, static_cast<signal_id>(peer.index()), 2, soon(), peer), "wait");
    {
      const auto released = std::move(win);
    }
    static_cast<void>(boot.allgather({}, soon(), "released"));  // Peers keep it until then.
    expect_equal(bus.adopted_bytes(), 0U, "adopted bytes of a released window");
  });
  CHECK(worst_status == 0);
}

TEST_CASE("near and far ranks raise one signal in turn, which never falls") {
  constexpr std::uint64_t rounds = 400;
  const int worst_status = peerbus::run_threads(3, [](bootstrap& boot) {
    // Ranks 0 and 2 are near each other; ranks 1 and 2 take turns at a signal of rank 0.
    mailed bus{boot, {.group = host_of(boot, 2)}};
    auto win = bus.make_window({.bytes = 0, .signals = 2}, soon());
    const signal_id shared{0};
    const signal_id turn{1};
    if (boot.rank() == rank_id{0}) {
      std::uint64_t last = 0;
      for (std::uint64_t n = 1; n <= 2 * rounds; ++n) {
        expect_ok(bus.wait(win, shared, n, soon(), {}), "wait for either plane");
        const std::uint64_t seen = bus.value(win, shared);
        expect(seen >= last && seen >= n, "a signal that never falls");
        last = seen;
      }
    } else {
      const bool is_near = boot.rank() == rank_id{2};
      const rank_id other{is_near ? 1U : 2U};
      for (std::uint64_t n = is_near ? 2 : 1; n <= 2 * rounds; n += 2) {
        expect_ok(bus.wait(win, turn, n - 1, soon(), other), "wait for one's turn");
        expect_ok(bus.signal(rank_id{0}, win, shared, n), "signal");
        // The far rank's signal may still be on its way when the near one raises the next.
        expect_ok(bus.signal(other, win, turn, n), "pass the turn on");
      }
    }
    expect_ok(bus.quiet(), "quiet");
    static_cast<void>(boot.allgather({}, soon(), "the end"));
  });
  CHECK(worst_status == 0);
}

TEST_CASE("threads of a rank wait for signals of both planes at once") {
  constexpr std::size_t waiters = 4;
  const int worst_status = peerbus::run_threads(3, [](bootstrap& boot) {
    mailed bus{boot, {.group = host_of(boot, 2)}};
    auto win = bus.make_window({.bytes = 0, .signals = 2 * waiters}, soon());
    if (boot.rank() == rank_id{0}) {
      std::atomic<int> wrong{0};
      std::vector<std::thread> threads;
      for (std::size_t i = 0; i < 2 * waiters; ++i)
        threads.emplace_back([&, i] {
          for (std::uint64_t n = 1; n <= 50; ++n)
            if (bus.wait(win, static_cast<signal_id>(i), n, soon(), {}) != errc::ok) ++wrong;
        });
      for (std::thread& one : threads) one.join();
      expect_equal(wrong.load(), 0, "failed waits");
    } else {
      const std::size_t first = boot.rank() == rank_id{1} ? 0 : waiters;
      for (std::uint64_t n = 1; n <= 50; ++n)
        for (std::size_t i = first; i < first + waiters; ++i)
          expect_ok(bus.signal(rank_id{0}, win, static_cast<signal_id>(i), n), "signal");
    }
    static_cast<void>(boot.allgather({}, soon(), "the end"));
  });
  CHECK(worst_status == 0);
}

TEST_CASE_TEMPLATE("a signal of any plane wakes a rank that sleeps", Planes, test::mailed_planes<2>,
                   test::three_planes) {
  const int worst_status = peerbus::run_threads(8, [](bootstrap& boot) {
    Planes bus{boot};
    auto win = bus.make_window({.bytes = 0, .signals = 1}, soon());
    for (const rank_id raiser : peerbus::all_ranks{8}) {
      // Ranks that raise a signal while nobody sleeps wake nobody.
      if (boot.rank() == raiser)
        expect_ok(bus.signal(rank_id{0}, win, signal_id{0}, 2 * raiser.index() + 1), "signal");
      static_cast<void>(boot.allgather({}, soon(), "raised"));
      expect(boot.rank() != rank_id{0} || bus.value(win, signal_id{0}) == 2 * raiser.index() + 1,
             "a signal for a rank that is awake");
      if (boot.rank() == rank_id{0}) expect(bus.arm(), "armed");
      static_cast<void>(boot.allgather({}, soon(), "armed"));
      if (boot.rank() == raiser)
        expect_ok(bus.signal(rank_id{0}, win, signal_id{0}, 2 * raiser.index() + 2), "signal");
      if (boot.rank() == rank_id{0}) {
        expect(!bus.arm(), "one armed thread at a time");
        pollfd entry{bus.arrival_fd(), POLLIN, 0};
        expect_equal(::poll(&entry, 1, 60'000), 1, "descriptors that tell of the signal");
        bus.disarm();
        expect_equal(bus.value(win, signal_id{0}), 2 * raiser.index() + 2, "signal");
        expect_equal(::poll(&entry, 1, 0), 0, "descriptors that tell of nothing");
      }
      static_cast<void>(boot.allgather({}, soon(), "woken"));
    }
  });
  CHECK(worst_status == 0);
}

TEST_CASE_TEMPLATE("signals arrive by a plane that has to be asked and wakes nobody", Planes,
                   test::grouped<peerbus::loopback, silent, 2>, racks<mute>) {
  const int worst_status = peerbus::run_threads(6, [](bootstrap& boot) {
    Planes bus{boot};
    auto win = bus.make_window({.bytes = 0, .signals = 6}, soon());
    expect(!bus.arm(), "nobody can sleep until something arrives");
    const auto own = static_cast<signal_id>(boot.rank().index());
    for (std::uint64_t n = 1; n <= 3; ++n) {
      for (const rank_id peer : peerbus::all_ranks{6})
        expect_ok(bus.signal(peer, win, own, n), "signal");
      for (const rank_id peer : peerbus::all_ranks{6})
        expect_ok(bus.wait(win, static_cast<signal_id>(peer.index()), n, soon(), peer), "wait");
    }
    static_cast<void>(boot.allgather({}, soon(), "the end"));
  });
  CHECK(worst_status == 0);
}

TEST_CASE("a broken link of a nested near plane ends the wait for its peer") {
  const int worst_status = peerbus::run_threads(4, [](bootstrap& boot) {
    racks<cut_off> bus{boot};
    auto win = bus.make_window({.bytes = 0, .signals = 1}, soon());
    if (boot.rank() == rank_id{0}) {
      expect_code(bus.health(rank_id{1}), errc::unreachable, "health of rank 1");
      expect_code(bus.wait(win, signal_id{0}, 1, soon(), rank_id{1}), errc::unreachable, "wait");
      expect_ok(bus.health(rank_id{2}), "health of a far rank");
    }
    static_cast<void>(boot.allgather({}, soon(), "the end"));
  });
  CHECK(worst_status == 0);
}

TEST_CASE("a wait that spins looks at the word more often than at the far plane") {
  using counted = peerbus::planes<peerbus::loopback, counted_polls, long_spin>;
  const int worst_status = peerbus::run_threads(2, [](bootstrap& boot) {
    std::shared_ptr<const counted_polls> far;
    counted bus{boot,
                {.group = host_of(boot, 2)},
                [](bootstrap& group) { return peerbus::loopback{group}; },
                [&](bootstrap& all) {
                  far = std::make_shared<counted_polls>(all);
                  return *far;
                }};
    auto win = bus.make_window({.bytes = 0, .signals = 1}, soon());
    expect_code(bus.wait(win, signal_id{0}, 1, deadline::after(std::chrono::seconds{0}), {}),
                errc::timed_out, "wait");
    expect(far->polls() > 1 && far->polls() < long_spin::rounds / 8, "polls: ", far->polls());
    static_cast<void>(boot.allgather({}, soon(), "the end"));
  });
  CHECK(worst_status == 0);
}

TEST_CASE("a rank that fails ends the waits of near and far ranks") {
  const int worst_status = peerbus::run_threads(5, [](bootstrap& boot) {
    mailed bus{boot, {.group = host_of(boot, 2)}};
    auto win = bus.make_window({.bytes = 0, .signals = 1}, soon());
    static_cast<void>(boot.allgather({}, soon(), "made"));
    if (boot.rank() == rank_id{2}) throw std::runtime_error{"on purpose"};
    const rank_id other{(boot.rank().index() + 2) % 5};
    expect_code(bus.wait(win, signal_id{0}, 1, soon(), other), errc::peer_dead, "wait");
    throw std::runtime_error{"was told"};
  });
  CHECK(worst_status == 1);
}

TEST_CASE("groups that only some ranks name are refused on all ranks, by name") {
  const int worst_status = peerbus::run_threads(4, [](bootstrap& boot) {
    const std::string name = boot.rank() == rank_id{2} ? "" : "rack 7";
    test::expect_error(errc::mismatch, {"rank 0 names its group", "rank 2 does not"},
                       [&] { lazy{boot, {.group = name}}; });
    peerbus::communicator comm{lazy{boot}};  // The bootstrap is as good as before.
    comm.barrier();
  });
  CHECK(worst_status == 0);
}

TEST_CASE("a group that cannot share memory is refused on all ranks, by name") {
  using unmapped = peerbus::planes<no_shared_memory, peerbus::loopback>;
  const int worst_status = peerbus::run_threads(5, [](bootstrap& boot) {
    const std::string name = boot.rank().index() < 2 ? "rack 7" : host_of(boot, 5);
    test::expect_error(errc::unsupported, {"ranks 0, 1", "group 'rack 7'", "no common memory here"},
                       [&] { unmapped{boot, {.group = name}}; });
    peerbus::communicator comm{unmapped{boot, {.group = host_of(boot, 5)}}};
    comm.barrier();
  });
  CHECK(worst_status == 0);
}

TEST_CASE("a rank whose near plane fails tells all ranks its reason at once") {
  using quick = peerbus::planes<peerbus::loopback, peerbus::loopback>;
  // If the other rank of the group waited for its deadline, the test would end by its time limit.
  const peerbus::planes_options forever{.setup_timeout = std::chrono::hours{1}};
  for (const rank_id failing : {rank_id{0}, rank_id{3}}) {
    const int worst_status = peerbus::run_threads(4, [&](bootstrap& boot) {
      peerbus::planes_options options = forever;
      options.group = host_of(boot, 2);
      test::expect_error(
          errc::out_of_memory, {"no near plane of ranks", "no huge pages left"}, [&] {
            quick{boot, options,
                  [&](bootstrap& group) {
                    if (boot.rank() == failing)
                      throw peerbus::error{errc::out_of_memory, "no huge pages left"};
                    return peerbus::loopback{group};
                  },
                  [](bootstrap& all) { return peerbus::loopback{all}; }};
          });
      peerbus::communicator comm{lazy{boot, options}};  // The bootstrap is as good as before.
      comm.barrier();
    });
    CHECK(worst_status == 0);
  }
}

TEST_CASE("a rank whose far plane fails tells all ranks its reason at once") {
  using quick = peerbus::planes<peerbus::loopback, peerbus::loopback>;
  // If the other ranks waited for their deadlines, the test would end by its time limit.
  const auto long_time = std::chrono::hours{1};
  const auto step = [&](bootstrap& all, const char* doing) {
    const auto given = all.allgather({}, deadline::after(long_time), doing);
    expect_equal(given.size(), std::size_t{4}, "contributions");
    expect(given[3].bytes.empty(), "bytes as they were given");
  };
  // Before, between and after the steps that all ranks do together.
  for (const int steps_done : {0, 1, 2})
    for (const rank_id failing : {rank_id{0}, rank_id{3}}) {
      const int worst_status = peerbus::run_threads(4, [&](bootstrap& boot) {
        const peerbus::planes_options options{.group = host_of(boot, 2),
                                              .setup_timeout = long_time};
        const std::string who = "rank " + std::to_string(failing.index()) + " could not: ";
        test::expect_error(
            errc::out_of_memory, {boot.rank() == failing ? "" : who, "no queue left"}, [&] {
              quick{boot, options, [](bootstrap& group) { return peerbus::loopback{group}; },
                    [&](bootstrap& all) {
                      for (int done = 0; done < 2; ++done) {
                        if (boot.rank() == failing && done == steps_done) break;
                        step(all, done == 0 ? "addresses" : "connections");
                      }
                      if (boot.rank() == failing)
                        throw peerbus::error{errc::out_of_memory, "no queue left"};
                      return peerbus::loopback{all};
                    }};
            });
        peerbus::communicator comm{lazy{boot, options}};  // The bootstrap is as good as before.
        comm.barrier();
      });
      CHECK(worst_status == 0);
    }
}

TEST_CASE("what the far plane throws on all ranks stays as it is") {
  using quick = peerbus::planes<peerbus::loopback, peerbus::loopback>;
  const int worst_status = peerbus::run_threads(4, [](bootstrap& boot) {
    const peerbus::planes_options options{.group = host_of(boot, 2)};
    const auto make_by = [&](auto make_far) {
      quick{boot, options, [](bootstrap& group) { return peerbus::loopback{group}; }, make_far};
    };
    const std::string own = "of rank " + std::to_string(boot.rank().index());
    test::expect_error(errc::unsupported, {own}, [&] {
      make_by(
          [&](bootstrap&) -> peerbus::loopback { throw peerbus::error{errc::unsupported, own}; });
    });
    // Exceptions of other types wait for nobody either.
    test::expect_error(errc::system, {"no such driver"}, [&] {
      make_by([&](bootstrap& all) {
        if (boot.rank() == rank_id{2}) throw std::runtime_error{"no such driver"};
        (void)all.allgather({}, deadline::after(std::chrono::hours{1}), "names");
        return peerbus::loopback{all};
      });
    });
    // Ranks that do different things are told so.
    test::expect_error(errc::mismatch, {"rank 0 is in 'names' but rank 1 in 'sizes'"}, [&] {
      make_by([&](bootstrap& all) {
        (void)all.allgather({}, soon(), boot.rank().index() == 0 ? "names" : "sizes");
        return peerbus::loopback{all};
      });
    });
    peerbus::communicator comm{lazy{boot, options}};
    comm.barrier();
  });
  CHECK(worst_status == 0);
}

TEST_CASE("memory that the far plane cannot take is refused on all ranks, and less works") {
  using full = peerbus::planes<peerbus::loopback, full_device>;
  const int worst_status = peerbus::run_threads(4, [](bootstrap& boot) {
    peerbus::communicator comm{full{boot, {.group = host_of(boot, 2)}}};
    const auto* const who = comm.rank() == rank_id{1} ? "this process" : "rank 1 could not";
    test::expect_error(errc::out_of_memory, {who, "may lock 1 KiB"},
                       [&] { static_cast<void>(comm.make_window(4096, 1)); });
    auto win = comm.make_window(512, 1);
    comm.barrier();
  });
  CHECK(worst_status == 0);
}

TEST_CASE("fetch_add by near and far ranks on one word") {
  const int worst_status = peerbus::run_threads(4, [](bootstrap& boot) {
    lazy bus{boot, {.group = host_of(boot, 2)}};
    auto win = bus.make_window({.bytes = 8, .signals = 0}, soon());
    std::uint64_t before = 0;
    for (int i = 0; i < 100; ++i) expect_ok(bus.fetch_add(rank_id{0}, win, 0, 1, before), "add");
    expect_equal(bus.near_traffic().messages, 0U, "near messages: all atomics are one plane's");
    static_cast<void>(boot.allgather({}, soon(), "added"));
    expect_ok(bus.fetch_add(rank_id{0}, win, 0, 0, before), "add");
    expect_equal(before, 400U, "the sum");
    static_cast<void>(boot.allgather({}, soon(), "the end"));
  });
  CHECK(worst_status == 0);
}

}  // namespace planes_test
