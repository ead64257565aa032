// SPDX-License-Identifier: MIT
// ctest: timeout=200
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/communicator.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>

#include "support/ranks.hpp"
#include "verbs/support.hpp"

// What queues of finite depth must not show: more requests, signals and bytes than they hold.

namespace {

using peerbus::deadline;
using peerbus::rank_id;
using peerbus::signal_id;
using test::expect_equal;
using test::expect_ok;

deadline soon() { return deadline::after(std::chrono::seconds{60}); }

std::uint64_t word_of(std::size_t round, std::size_t at) {
  return (round * 1'000'003 + at + 1) * 0x9e37'79b9'7f4a'7c15U;
}

/// Rank 0 puts `blocks` blocks of `words` words to rank 1, `stride` words apart there, then
/// signals; rank 1 looks at all of them and at what lies between.
template <class Group>
void check_blocks(std::size_t blocks, std::size_t words, std::size_t stride, std::size_t rounds) {
  CAPTURE(blocks);
  CAPTURE(words);
  const int worst_status = Group::run(2, [=](auto& comm) {
    const std::size_t span = blocks * stride;
    auto win = comm.make_window((span + blocks * words) * 8, 2);
    const auto local = win.template local<std::uint64_t>();
    const auto sources = local.subspan(span);
    for (std::size_t round = 1; round <= rounds; ++round) {
      if (comm.rank() == rank_id{0}) {
        for (std::size_t i = 0; i < sources.size(); ++i) sources[i] = word_of(round, i);
        for (std::size_t b = 0; b < blocks; ++b)
          expect_ok(win.put(rank_id{1}, b * stride * 8, sources.subspan(b * words, words)), "put");
        expect_ok(win.signal(rank_id{1}, signal_id{0}, round), "signal");
        expect_ok(win.flush(rank_id{1}), "flush");
        for (std::uint64_t& word : sources) word = 0;  // They are ours again.
        win.await(signal_id{1}, round, soon(), rank_id{1});
      } else {
        win.await(signal_id{0}, round, soon(), rank_id{0});
        for (std::size_t b = 0; b < blocks; ++b)
          for (std::size_t w = 0; w < stride; ++w)
            expect_equal(local[b * stride + w], w < words ? word_of(round, b * words + w) : 0,
                         "round ", round, ", block ", b, ", word ", w);
        expect_ok(win.signal(rank_id{0}, signal_id{1}, round), "signal back");
      }
    }
    comm.barrier();
  });
  CHECK(worst_status == 0);
}

}  // namespace

TEST_CASE_TEMPLATE("more puts than a queue holds, side by side and apart", Group, verbs_test::plain,
                   verbs_test::striped) {
  check_blocks<Group>(1000, 1, 1, 3);
  check_blocks<Group>(1000, 3, 5, 3);
  check_blocks<Group>(300, 40, 41, 3);
}

TEST_CASE_TEMPLATE("puts longer than a message may be", Group, verbs_test::plain,
                   verbs_test::striped) {
  check_blocks<Group>(1, (std::size_t{20} << 20U) / 8 + 3, (std::size_t{20} << 20U) / 8 + 4, 1);
  check_blocks<Group>(5, (std::size_t{1} << 18U) / 8, (std::size_t{1} << 18U) / 8 + 2, 2);
}

TEST_CASE("a put that is spread over queue pairs arrives whole, whatever its length") {
  const int worst_status = verbs_test::striped::run(2, [](auto& comm) {
    constexpr std::size_t round = 3 * 4096;  // A page for each of the three.
    std::vector<std::size_t> lengths{1, 2, 3, 47, 48, 49, 4095, 4096, 4097};
    for (const std::size_t whole : {round, 2 * round, 7 * round, 22 * round})
      for (const std::size_t more : {0U, 1U, 2U, 3U, 4095U, 4096U, 4097U})
        lengths.push_back(whole + more);
    constexpr std::size_t most = 23 * round + 64;
    auto win = comm.make_window(2 * most, 2);
    const auto local = win.local();
    std::uint64_t n = 0;
    for (const std::size_t length : lengths) {
      ++n;
      if (comm.rank() == rank_id{0}) {
        for (std::size_t i = 0; i < length; ++i)
          local[most + i] = static_cast<std::byte>(word_of(n, i) >> 13U);
        expect_ok(win.put_signal(rank_id{1}, 5, local.subspan(most, length), signal_id{0}, n),
                  "put");
        win.await(signal_id{1}, n, soon(), rank_id{1});
      } else {
        win.await(signal_id{0}, n, soon(), rank_id{0});
        for (std::size_t i = 0; i < length; ++i)
          test::expect(local[5 + i] == static_cast<std::byte>(word_of(n, i) >> 13U), "byte ", i,
                       " of ", length);
        test::expect(local[5 + length] == std::byte{0}, "nothing behind ", length, " bytes");
        std::fill(local.begin(), local.begin() + most, std::byte{0});
        expect_ok(win.signal(rank_id{0}, signal_id{1}, n), "signal back");
      }
    }
    comm.barrier();
  });
  CHECK(worst_status == 0);
}

TEST_CASE("threads of one rank draw tickets at the same peer") {
  const int worst_status = verbs_test::plain::run(2, [](auto& comm) {
    constexpr std::size_t threads = 4;
    constexpr std::uint64_t each = 100;
    std::vector<peerbus::window<peerbus::verbs>> windows;
    for (std::size_t i = 0; i < threads; ++i) windows.push_back(comm.make_window(64, 1));
    std::vector<std::thread> crew;
    std::vector<int> wrong(threads);
    for (std::size_t i = 0; i < threads; ++i)
      crew.emplace_back([&, i] {
        // Signals beside them, whose notices use the same memory.
        std::uint64_t last = 0;
        for (std::uint64_t n = 0; n < each; ++n) {
          std::uint64_t ticket = ~std::uint64_t{0};
          const auto code = windows[i].fetch_add(rank_id{0}, 0, i + 1, ticket);
          const auto told = windows[i].signal(rank_id{1}, signal_id{0}, n * 100'000);
          const bool good = code == peerbus::errc::ok && told == peerbus::errc::ok &&
                            ticket % (i + 1) == 0 && ticket < 2 * each * (i + 1) &&
                            (n == 0 || ticket > last);
          wrong[i] += good ? 0 : 1;
          last = ticket;
        }
      });
    for (std::thread& one : crew) one.join();
    for (std::size_t i = 0; i < threads; ++i)
      expect_equal(wrong[i], 0, "wrong tickets of thread ", i);
    comm.barrier();
    for (std::size_t i = 0; i < threads; ++i) {
      std::uint64_t total = 0;
      expect_ok(windows[i].fetch_add(rank_id{0}, 0, 0, total), "fetch_add");
      expect_equal(total, 2 * each * (i + 1), "the sum in window ", i);
    }
    comm.barrier();
  });
  CHECK(worst_status == 0);
}

TEST_CASE_TEMPLATE("signals get through to a rank that already waits in a collective", Group,
                   verbs_test::plain, verbs_test::striped) {
  const int worst_status = Group::run(2, [](auto& comm) {
    constexpr std::uint64_t count = 500;
    auto win = comm.make_window(8, 1);
    for (const rank_id late : comm.ranks()) {
      if (comm.rank() == late) {
        const rank_id waiting{1 - late.index()};
        for (std::uint64_t n = 1; n <= count; ++n)
          expect_ok(win.signal(waiting, signal_id{0}, n), "signal");
        // All are there, though the other rank is in `make_window` until this one comes.
        expect_ok(win.flush(waiting), "flush");
      }
      static_cast<void>(comm.make_window(8, 1, soon()));
      if (comm.rank() != late) expect_equal(win.value(signal_id{0}), count, "the last signal");
      comm.agree("the end of a round", {});
    }
  });
  CHECK(worst_status == 0);
}

TEST_CASE_TEMPLATE("more signals than the receiver's queue holds while nobody looks", Group,
                   verbs_test::plain, verbs_test::striped) {
  const int worst_status = Group::run(2, [](auto& comm) {
    constexpr std::uint64_t count = 500;
    auto win = comm.make_window(16, 400);
    const auto local = win.template local<std::uint64_t>();
    if (comm.rank() == rank_id{0}) {
      for (std::uint64_t n = 1; n <= count; ++n) {
        local[1] = n;
        expect_ok(win.put(rank_id{1}, 0, local.subspan(1, 1)), "put");
        // Many names, some of which meet in the tables, and steps beyond 16 bits.
        expect_ok(win.signal(rank_id{1}, static_cast<signal_id>(n % 399), n * 40'000), "signal");
        expect_ok(win.flush(rank_id{1}), "flush");
      }
      expect_ok(win.signal(rank_id{1}, signal_id{399}, ~std::uint64_t{0}), "signal");
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds{50});  // Only makes the queue fill.
      win.await(signal_id{399}, ~std::uint64_t{0}, soon(), rank_id{0});
      for (std::uint64_t n = count; n > count - 399; --n)
        expect_equal(win.value(static_cast<signal_id>(n % 399)), n * 40'000, "signal of ", n);
      expect_equal(local[0], count, "what was put last");
    }
    comm.barrier();
  });
  CHECK(worst_status == 0);
}

TEST_CASE("all ranks flood each other, and nobody waits for anybody") {
  const int worst_status = verbs_test::striped::run(4, [](auto& comm) {
    constexpr std::uint64_t count = 400;
    auto win = comm.make_window(2 * comm.size() * 8, comm.size());
    const auto local = win.template local<std::uint64_t>();
    const std::size_t me = comm.rank().index();
    for (std::uint64_t n = 1; n <= count; ++n)
      for (const rank_id peer : comm.peers())
        expect_ok(win.signal(peer, static_cast<signal_id>(me), n), "signal");
    local[comm.size()] = me + 1;
    for (const rank_id peer : comm.peers())
      expect_ok(win.put_signal(peer, me * 8, local.subspan(comm.size(), 1),
                               static_cast<signal_id>(me), count + 1),
                "put_signal");
    for (const rank_id peer : comm.peers()) {
      win.await(static_cast<signal_id>(peer.index()), count + 1, soon(), peer);
      expect_equal(local[peer.index()], peer.index() + 1, "word of rank ", peer.index());
    }
    comm.barrier();
  });
  CHECK(worst_status == 0);
}

TEST_CASE("threads of one rank, each with a window of its own") {
  const int worst_status = verbs_test::plain::run(2, [](auto& comm) {
    constexpr std::size_t threads = 3;
    std::vector<peerbus::window<peerbus::verbs>> windows;
    for (std::size_t i = 0; i < threads; ++i) windows.push_back(comm.make_window(1024, 1));
    const rank_id peer{1 - comm.rank().index()};
    std::vector<std::thread> crew;
    std::vector<std::string> failures(threads);
    for (std::size_t i = 0; i < threads; ++i)
      crew.emplace_back([&, i] {
        try {
          auto& win = windows[i];
          const auto local = win.local<std::uint64_t>();
          for (std::uint64_t n = 1; n <= 200; ++n) {
            local[64] = word_of(n, i + comm.rank().index());
            expect_ok(win.put_signal(peer, 0, local.subspan(64, 1), signal_id{0}, 2 * n - 1),
                      "put_signal");
            win.await(signal_id{0}, 2 * n - 1, soon(), peer);
            expect_equal(local[0], word_of(n, i + peer.index()), "window ", i, ", round ", n);
            expect_ok(win.signal(peer, signal_id{0}, 2 * n), "signal");
            win.await(signal_id{0}, 2 * n, soon(), peer);
          }
        } catch (const std::exception& problem) {
          failures[i] = problem.what();
        }
      });
    for (std::thread& one : crew) one.join();
    for (const std::string& text : failures)
      expect_equal(text, std::string{}, "a thread's failure");
    comm.barrier();
  });
  CHECK(worst_status == 0);
}

TEST_CASE("memory of windows that all ranks released is given back") {
  const int worst_status = verbs_test::plain::run(3, [](auto& comm) {
    const auto count = [] {
      const std::string text = verbs_test::resources();
      const auto at = text.find("mr ");
      return at == std::string::npos ? text : text.substr(at, text.find(' ', at + 3) - at);
    };
    static_cast<void>(comm.make_window(4096, 1));
    comm.barrier();
    const std::string before = count();
    comm.barrier();
    for (int i = 0; i < 20; ++i) {
      auto win = comm.make_window(100'000, 3);
      expect_ok(win.put(rank_id{(comm.rank().index() + 1) % 3}, 0, win.local().subspan(50'000)),
                "put");
    }
    static_cast<void>(comm.make_window(4096, 1));
    comm.barrier();
    expect_equal(count(), before, "registrations on this device");
    comm.barrier();
  });
  CHECK(worst_status == 0);
}
