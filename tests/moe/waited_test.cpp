// SPDX-License-Identifier: MIT
// ctest: tsan timeout=120
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/activity.hpp>
#include <peerbus/bootstrap/event_listener.hpp>
#include <peerbus/codec/bf16.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/wait.hpp>
#include <peerbus/moe/call_options.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/routing.hpp>
#include <peerbus/trace/recorder.hpp>

#include "support/groups.hpp"
#include "support/indirect.hpp"
#include "support/on_lanes.hpp"
#include "support/ranks.hpp"

namespace waited_test {

namespace {

using namespace std::chrono_literals;
using peerbus::bf16;
using peerbus::errc;
using peerbus::moe::exchange;
using codec = peerbus::codec::bf16;
using direct = test::direct_threads;
using staged = test::staged_threads;

constexpr std::size_t ranks = 3;
constexpr std::size_t late = 1;
constexpr peerbus::moe::exchange_config config{
    .experts = 3, .hidden = 16, .top_k = 1, .max_tokens = 1};

/// One token, to the next rank.
struct call {
  explicit call(std::size_t rank) : experts{static_cast<std::int64_t>((rank + 1) % ranks)} {}
  [[nodiscard]] peerbus::moe::routing route() const { return {experts, weights}; }

  std::vector<bf16> tokens = std::vector<bf16>(16, bf16{1.0F});
  std::vector<std::int64_t> experts;
  std::vector<float> weights{1.0F};
};

using entries = std::array<std::int64_t, ranks>;

/// Brings all ranks together without the library, so that nothing of an exchange is moved along.
class meeting {
 public:
  void meet() {
    const std::size_t mine = came_.fetch_add(1) / ranks;
    while (came_.load() / ranks <= mine) std::this_thread::yield();
  }

 private:
  std::atomic<std::size_t> came_{0};
};

/// The late rank begins long after all others have begun and are known to have. Whether the others
/// then waited for it alone: always, but for what the machine does to them in between.
template <class Begin, class End>
bool only_late_one(std::size_t rank, meeting& all, Begin&& begin, End&& end) {
  constexpr auto delay = 40ms;
  entries waited{};
  if (rank != late) begin();
  all.meet();
  const auto from = std::chrono::steady_clock::now();
  if (rank == late) {
    std::this_thread::sleep_for(delay);
    begin();
  }
  end(waited);
  const auto took = std::chrono::nanoseconds{std::chrono::steady_clock::now() - from}.count();
  for (const std::int64_t one : waited) {
    test::expect(one >= 0, "no negative time");
    test::expect(one <= took, "no more than the call took, ", took, ", not ", one);
  }
  test::expect_equal(waited[rank], 0, "what a rank waited for itself");
  if (rank == late) return true;
  const std::int64_t other = waited[ranks - late - rank];
  return waited[late] > 4 * other && waited[late] > std::chrono::nanoseconds{delay / 2}.count();
}

/// How often each rank found the late one, of `rounds` dispatches and as many combines.
template <class Group>
void check_late_rank() {
  constexpr int rounds = 5;
  std::array<std::atomic<int>, ranks> dispatches{};
  std::array<std::atomic<int>, ranks> combines{};
  meeting all;
  const int worst_status = Group::run(ranks, [&](auto& comm) {
    exchange moe{comm, config, codec{}};
    const std::size_t rank = comm.rank().index();
    const call mine{rank};
    for (int round = 0; round < rounds; ++round) {
      peerbus::moe::ticket begun{};
      using received = typename decltype(moe)::received_type;
      std::optional<received> got;
      dispatches[rank] += only_late_one(
          rank, all, [&] { begun = moe.dispatch_send(mine.tokens, mine.route()); },
          [&](entries& waited) { got.emplace(moe.dispatch_recv(begun, {.waited = waited})); });
      for (const auto& expert : got->experts())
        for (std::size_t row = 0; row < expert.count(); ++row)
          std::ranges::fill(expert.output(row), bf16{2.0F});
      std::vector<bf16> out(16);
      combines[rank] += only_late_one(
          rank, all, [&] { moe.combine_send(*got); },
          [&](entries& waited) { moe.combine_recv(*got, out, {.waited = waited}); });
      test::expect(out == std::vector<bf16>(16, bf16{2.0F}), "the outputs");
    }
  });
  CHECK(worst_status == 0);
  // A busy machine may hide it at times, not always.
  for (const auto& found : dispatches) CHECK(found > 0);
  for (const auto& found : combines) CHECK(found > 0);
}

/// In how many of 5 dispatches each rank's longest wait names the late rank, as listeners hear it.
template <class Group>
void check_named_rank(bool measures) {
  std::array<std::atomic<int>, ranks> named{};
  meeting all;
  const int worst_status = Group::run(ranks, [&](auto& comm) {
    peerbus::recorder events;
    comm.members()->listeners().add(events);
    exchange moe{comm, config, codec{}};
    const std::size_t rank = comm.rank().index();
    const call mine{rank};
    for (std::uint64_t number = 1; number <= 5; ++number) {
      peerbus::moe::ticket begun{};
      if (rank != late) begun = moe.dispatch_send(mine.tokens, mine.route());
      all.meet();
      if (rank == late) {
        std::this_thread::sleep_for(40ms);
        begun = moe.dispatch_send(mine.tokens, mine.route());
      }
      entries waited{};
      const auto got =
          moe.dispatch_recv(begun, {.waited = measures ? waited : std::span<std::int64_t>{}});
      std::vector<bf16> out(16);
      moe.combine(got, out);
      peerbus::operation_event longest;
      const auto recorded = events.read().at(0);
      for (const auto& event : recorded) {
        test::expect(event.ended >= event.begun, "an event that ends after its begin");
        const bool is_wait = event.kind == peerbus::event_kind::wait &&
                             event.what.number == number &&
                             event.what.operation == peerbus::group_operation::dispatch;
        if (is_wait && event.ended - event.begun > longest.ended - longest.begun) longest = event;
      }
      if (longest.peer == peerbus::rank_id{late}) ++named[rank];
    }
    comm.members()->listeners().remove(events);
    test::expect_equal(events.lost(), std::uint64_t{0}, "lost events");
  });
  CHECK(worst_status == 0);
  for (std::size_t rank = 0; rank < ranks; ++rank)
    CHECK((rank == late ? named[rank] == 0 : named[rank] > 0));
}

}  // namespace

TEST_CASE("a late rank is named by the longest wait that listeners hear") {
  check_named_rank<direct>(false);
  check_named_rank<direct>(true);
  check_named_rank<staged>(false);
}

TEST_CASE("a late rank shows in its entry: direct") { check_late_rank<direct>(); }

TEST_CASE("a late rank shows in its entry: staged") { check_late_rank<staged>(); }

TEST_CASE("a rank that left ends a call that measures its waits, long before the deadline") {
  // Longer than it takes to get a turn on a busy machine: that alone ends no wait sooner.
  struct asks_rarely {
    [[nodiscard]] constexpr peerbus::wait_thresholds thresholds(std::size_t,
                                                                std::size_t) const noexcept {
      return {0, 0, 0, 500ms};
    }
  };
  using rare = peerbus::basic_loopback<asks_rarely>;
  constexpr peerbus::communicator_options patient{.timeout = 20s};
  const auto check = [](auto& comm) {
    exchange moe{comm, config, codec{}};
    if (comm.rank().index() == late) return;
    const call mine{comm.rank().index()};
    std::vector<std::int64_t> waited(comm.size());
    test::expect_error(
        errc::peer_dead, {"dispatch 1: waited ", " for counts of rank 1 (epoch 0, expected 1; "},
        [&] { static_cast<void>(moe.dispatch(mine.tokens, mine.route(), {.waited = waited})); });
    test::expect(waited[late] > 0, "the wait for the rank that left");
  };
  // 6 ranks have one board for all.
  for (const std::size_t n : {ranks, std::size_t{6}})
    CHECK(test::threads_over<rare>::run(n, check, patient) == 0);
  CHECK(test::threads_over<test::indirect<rare>>::run(ranks, check, patient) == 0);
}

TEST_CASE("a rank that is missing at the deadline has the wait so far") {
  meeting all;
  const auto check = [&all](auto& comm) {
    exchange moe{comm, config, codec{}};
    if (comm.rank().index() == late) return all.meet();
    const call mine{comm.rank().index()};
    entries waited{};
    test::expect_error(errc::timed_out,
                       {"dispatch 1: waited ", " for counts of ", "rank 1 (epoch 0, expected 1; "},
                       [&] {
                         const auto until = peerbus::deadline::after(50ms);
                         static_cast<void>(moe.dispatch(mine.tokens, mine.route(),
                                                        {.until = until, .waited = waited}));
                       });
    test::expect(waited[late] > 0, "the wait for the missing rank");
    test::expect_equal(waited[comm.rank().index()], 0, "what a rank waited for itself");
    all.meet();
  };
  CHECK(direct::run(ranks, check) == 0);
  CHECK(staged::run(ranks, check) == 0);
}

TEST_CASE("waits are added to what is there, by every call that waits") {
  const int worst_status = direct::run(ranks, [](auto& comm) {
    exchange moe{comm, config, codec{}};
    const std::size_t rank = comm.rank().index();
    const call mine{rank};
    entries waited{100, 200, 300};
    entries before = waited;
    std::vector<bf16> out(16);
    for (int round = 0; round < 20; ++round) {
      const auto got = moe.dispatch(mine.tokens, mine.route(), {.waited = waited});
      for (int half = 0; half < 2; ++half) {
        test::expect_equal(waited[rank], before[rank], "what a rank waited for itself");
        for (std::size_t r = 0; r < ranks; ++r)
          test::expect(waited[r] >= before[r], "entry ", r, " to grow");
        before = waited;
        if (half == 0) moe.combine(got, out, {.waited = waited});
      }
    }
    for (std::size_t r = 0; r < ranks; ++r)
      if (r != rank) test::expect(waited[r] > 100 * static_cast<std::int64_t>(r + 1), "any wait");
  });
  CHECK(worst_status == 0);
}

TEST_CASE("waited of another size is refused, and the call can be made again") {
  const int worst_status = direct::run(ranks, [](auto& comm) {
    exchange moe{comm, config, codec{}};
    const call mine{comm.rank().index()};
    std::vector<std::int64_t> waited(ranks + 1);
    std::vector<bf16> out(16);
    for (const std::size_t size : {ranks - 1, ranks + 1}) {
      const auto bad = std::span{waited}.first(size);
      const auto refused = [&](auto&& f) {
        test::expect_error(errc::invalid_argument,
                           {size < ranks ? "waited has 2 entries" : "waited has 4 entries",
                            "expected none or one per rank, 3"},
                           f);
      };
      refused([&] {
        static_cast<void>(moe.dispatch_send(mine.tokens, mine.route(), {.waited = bad}));
      });
      const auto begun = moe.dispatch_send(mine.tokens, mine.route());
      refused([&] { static_cast<void>(moe.dispatch_recv(begun, {.waited = bad})); });
      const auto got = moe.dispatch_recv(begun);
      refused([&] { moe.combine(got, out, {.waited = bad}); });
      moe.combine_send(got);
      refused([&] { moe.combine_recv(got, out, {.waited = bad}); });
      moe.combine_recv(got, out);
      const auto good = std::span{waited}.first(ranks);
      const auto again = moe.dispatch(mine.tokens, mine.route(), {.waited = good});
      moe.combine(again, out, {.waited = good});
    }
    test::expect_equal(waited[ranks], 0, "the entry beyond the last");
  });
  CHECK(worst_status == 0);
}

TEST_CASE("waited of another size from lane 0 alone is refused on all lanes") {
  const int worst_status = direct::run(ranks, [](auto& comm) {
    exchange moe{comm, config, codec{}};
    const call mine{comm.rank().index()};
    std::vector<std::int64_t> waited(ranks + 1);
    std::vector<bf16> out(16);
    const auto refused = [&](auto&& f) {
      test::on_lanes(2, [&](peerbus::moe::lane as) {
        const auto bad = std::span{waited}.first(as.index == 0 ? waited.size() : 0);
        test::expect_error(errc::invalid_argument,
                           {"waited has 4 entries", "expected none or one per rank, 3"},
                           [&] { f(as, bad); });
      });
    };
    using lane = peerbus::moe::lane;
    refused([&](lane as, auto bad) {
      static_cast<void>(moe.dispatch(mine.tokens, mine.route(), {.as = as, .waited = bad}));
    });
    const auto begun = moe.dispatch_send(mine.tokens, mine.route());
    refused([&](lane as, auto bad) {
      static_cast<void>(moe.dispatch_recv(begun, {.as = as, .waited = bad}));
    });
    const auto got = moe.dispatch_recv(begun);
    refused([&](lane as, auto bad) { moe.combine(got, out, {.as = as, .waited = bad}); });
    moe.combine_send(got);
    refused([&](lane as, auto bad) { moe.combine_recv(got, out, {.as = as, .waited = bad}); });
    moe.combine_recv(got, out);
    comm.barrier();
  });
  CHECK(worst_status == 0);
}

}  // namespace waited_test
