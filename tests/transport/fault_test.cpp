// SPDX-License-Identifier: MIT
// ctest: tsan
#include <signal.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/bootstrap/threads.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/decorator.hpp>
#include <peerbus/transport/fault.hpp>
#include <peerbus/transport/loopback.hpp>
#include <peerbus/transport/planes.hpp>
#include <peerbus/transport/refinements.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "conformance/exchange_suite.hpp"
#include "support/indirect.hpp"
#include "support/put_to_all.hpp"
#include "support/ranks.hpp"
#include "support/round.hpp"
#include "support/tally.hpp"

namespace fault_test {

using peerbus::any_transport;
using peerbus::bootstrap;
using peerbus::deadline;
using peerbus::errc;
using peerbus::fault_counts;
using peerbus::fault_rule;
using peerbus::fault_schedule;
using peerbus::rank_id;
using peerbus::signal_id;
using test::expect;
using test::expect_code;
using test::expect_equal;
using test::expect_ok;

using late_loopback = peerbus::fault<peerbus::loopback>;

// Stores and private reads would pass by the faults.
static_assert(peerbus::transport<late_loopback> && peerbus::runnable_transport<late_loopback>);
static_assert(peerbus::adopting_transport<late_loopback>);
static_assert(peerbus::reach_by_type<late_loopback> == peerbus::peer_reach::none);
static_assert(!late_loopback::refines.private_memory && !late_loopback::refines.local_signals);
static_assert(peerbus::transport<peerbus::fault<peerbus::fault<peerbus::unified_bus>>>);

namespace {

constexpr fault_rule never{};
constexpr fault_rule always{.chance = 1};
constexpr rank_id self{0};
constexpr signal_id first{0};

deadline soon() { return deadline::after(std::chrono::seconds{30}); }
deadline at_once() { return deadline::after(std::chrono::seconds{0}); }

/// A schedule without any fault.
fault_schedule calm() {
  fault_schedule made;
  made.delay = never;
  made.reorder = never;
  return made;
}
/// A schedule that delays everything and changes nothing else.
fault_schedule late() {
  fault_schedule made = calm();
  made.delay = always;
  return made;
}

/// Runs `body` as the only rank.
template <class Body>
void alone(Body body) {
  CHECK(peerbus::run_threads(1, body) == 0);
}

std::span<const std::byte> bytes_of(const std::uint64_t& word) {
  return std::as_bytes(std::span{&word, 1});
}
std::uint64_t word_at(std::span<const std::byte> memory, std::size_t index) {
  std::uint64_t word = 0;
  std::copy_n(memory.data() + index * sizeof word, sizeof word,
              std::as_writable_bytes(std::span{&word, 1}).data());
  return word;
}

/// A request that reached the inner transport.
struct event {
  char what;
  std::size_t peer;
  std::uint64_t number;  ///< the offset of a put or get, the value of a signal
  friend bool operator==(const event&, const event&) = default;
};

/// Notes the requests that reach it, in their order.
class noting
    : public peerbus::transport_decorator<peerbus::loopback, peerbus::transport_refinements{}> {
 public:
  noting(bootstrap& boot, std::vector<event>& events)
      : transport_decorator{peerbus::loopback{boot}}, events_{&events} {}
  [[nodiscard]] errc put(rank_id peer, const window& memory, std::size_t offset,
                         std::span<const std::byte> source) noexcept {
    events_->push_back({'p', peer.index(), offset});
    return inner().put(peer, memory, offset, source);
  }
  [[nodiscard]] errc get(rank_id peer, const window& memory, std::size_t offset,
                         std::span<std::byte> target) noexcept {
    events_->push_back({'g', peer.index(), offset});
    return inner().get(peer, memory, offset, target);
  }
  [[nodiscard]] errc signal(rank_id peer, const window& memory, signal_id id,
                            std::uint64_t value) noexcept {
    events_->push_back({'s', peer.index(), value});
    return inner().signal(peer, memory, id, value);
  }

 private:
  std::vector<event>* events_;
};

/// The requests of a rank as it makes them, those that reach the transport, and the faults.
struct history {
  std::vector<event> called;
  std::vector<event> done;
  fault_counts faults;
  friend bool operator==(const history&, const history&) = default;
};

/// Rank 0 of three puts, gets and signals to all of them, 400 times, in an order that is always the
/// same. Each put and get has a place of its own.
history record(const fault_schedule& schedule) {
  history made;
  CHECK(peerbus::run_threads(3, [&](bootstrap& boot) {
          std::vector<event> of_peers;
          const bool is_first = boot.rank() == rank_id{0};
          peerbus::fault<noting> bus{noting{boot, is_first ? made.done : of_peers}, schedule};
          const auto memory = bus.make_window({.bytes = 4096, .signals = 1}, soon());
          std::uint64_t dice = 7;
          std::vector<std::uint64_t> words(400, 1);
          for (std::uint64_t i = 0; is_first && i < 400; ++i) {
            dice = dice * 6364136223846793005U + 1442695040888963407U;
            const rank_id peer{(dice >> 40U) % 3};
            const auto what = (dice >> 50U) % 4;
            const event next{what == 0   ? 's'
                             : what == 1 ? 'g'
                                         : 'p',
                             peer.index(), what == 0 ? i + 1 : i * 8};
            made.called.push_back(next);
            if (what == 0)
              expect_ok(bus.signal(peer, memory, first, i + 1), "signal");
            else if (what == 1)
              expect_ok(
                  bus.get(peer, memory, i * 8, std::as_writable_bytes(std::span{&words[i], 1})),
                  "get");
            else
              expect_ok(bus.put(peer, memory, i * 8, bytes_of(words[i])), "put");
            if (i % 97 == 0) expect_ok(bus.flush(peer), "flush");
          }
          expect_ok(bus.quiet(), "quiet");
          if (is_first) made.faults = bus.faults();
          static_cast<void>(boot.allgather({}, soon(), "end"));
        }) == 0);
  return made;
}

/// Returns what `peer` sees of `events`: between two signals puts and gets in the order of their
/// places.
std::vector<event> seen_by(std::size_t peer, const std::vector<event>& events) {
  std::vector<event> seen;
  std::copy_if(events.begin(), events.end(), std::back_inserter(seen),
               [peer](const event& each) { return each.peer == peer; });
  for (auto begin = seen.begin(); begin != seen.end();) {
    const auto end = std::find_if(begin, seen.end(), [](const event& e) { return e.what == 's'; });
    std::sort(begin, end, [](const event& a, const event& b) { return a.number < b.number; });
    begin = end == seen.end() ? end : end + 1;
  }
  return seen;
}

}  // namespace

TEST_CASE("puts and signals come late and in another order, but no put passes a signal") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    fault_schedule schedule;
    schedule.seed = seed;
    schedule.held_calls = seed % 2 == 0 ? 256 : 5;  // Also when there is no room.
    const history made = record(schedule);
    CHECK(made.done != made.called);
    CHECK(made.done.size() == made.called.size());
    for (std::size_t peer = 0; peer < 3; ++peer)
      CHECK(seen_by(peer, made.done) == seen_by(peer, made.called));
    CHECK(made.faults.requests == 400);
    CHECK(made.faults.delayed > 60);
    CHECK(made.faults.delayed < 140);
    CHECK(made.faults.reordered > 20);
    CHECK(made.faults.stalled + made.faults.failed + made.faults.dropped + made.faults.corrupted ==
          0);
  }
}

TEST_CASE("one seed gives the same faults again, another one gives others") {
  fault_schedule schedule;
  schedule.stall = {.chance = 0.1};
  schedule.stall_time = std::chrono::microseconds{1};
  schedule.corrupt = {.chance = 0.1};
  std::vector<history> made;
  for (const std::uint64_t seed : {5U, 5U, 6U}) {
    schedule.seed = seed;
    made.push_back(record(schedule));
  }
  CHECK(made[0] == made[1]);
  CHECK(made[0].faults != made[2].faults);
  CHECK(made[0].done != made[2].done);
}

TEST_CASE("a schedule without chances changes nothing") {
  const history made = record(calm());
  CHECK(made.done == made.called);
  CHECK(made.faults == fault_counts{.requests = 400});
}

TEST_CASE("a receiver that does not wait reads too early") {
  std::barrier<> both{2};
  CHECK(peerbus::run_threads(2, [&](bootstrap& boot) {
          late_loopback bus{boot, late()};
          const auto memory = bus.make_window({.bytes = 8, .signals = 1}, soon());
          const std::uint64_t word = 4711;
          if (boot.rank() == rank_id{0})
            expect_ok(bus.put_signal(rank_id{1}, memory, 0, bytes_of(word), first, 1), "put");
          both.arrive_and_wait();
          if (boot.rank() == rank_id{1}) expect_equal(word_at(bus.local(memory), 0), 0U, "a word");
          both.arrive_and_wait();
          if (boot.rank() == rank_id{0}) {
            expect_ok(bus.quiet(), "quiet");
            expect_equal(bus.faults().delayed, 2U, "a put and a signal");
          }
          if (boot.rank() == rank_id{1}) {
            expect_ok(bus.wait(memory, first, 1, soon(), rank_id{0}), "wait");
            expect_equal(word_at(bus.local(memory), 0), word, "a word");
          }
        }) == 0);
}

TEST_CASE("a source is read, and a target written, when the call is done") {
  alone([](bootstrap& boot) {
    late_loopback bus{boot, late()};
    const auto memory = bus.make_window({.bytes = 16, .signals = 1}, soon());
    std::uint64_t source = 1;
    expect_ok(bus.put(self, memory, 0, bytes_of(source)), "put");
    source = 2;  // Too early.
    expect_ok(bus.flush(self), "flush");
    expect_equal(word_at(bus.local(memory), 0), 2U, "what was put");
    source = 3;
    std::uint64_t target = 0;
    expect_ok(bus.get(self, memory, 0, std::as_writable_bytes(std::span{&target, 1})), "get");
    expect_equal(target, 0U, "the target before flush");
    expect_ok(bus.flush(self), "flush");
    expect_equal(target, 2U, "the target after flush");
  });
}

TEST_CASE("calls that look do what is held, in the end") {
  const std::initializer_list<std::function<void(late_loopback&, const late_loopback::window&)>>
      looks{
          [](auto& bus, const auto&) { expect_ok(bus.progress(), "progress"); },
          [](auto& bus, const auto& memory) { static_cast<void>(bus.value(memory, first)); },
          [](auto& bus, const auto& memory) {
            static_cast<void>(bus.wait(memory, first, 2, at_once(), std::nullopt));
          },
      };
  for (const auto& look : looks)
    alone([&](bootstrap& boot) {
      late_loopback bus{boot, late()};
      const auto memory = bus.make_window({.bytes = 8, .signals = 1}, soon());
      const std::uint64_t word = 5;
      expect_ok(bus.put_signal(self, memory, 0, bytes_of(word), first, 1), "put_signal");
      expect_equal(word_at(bus.local(memory), 0), 0U, "the word at first");
      for (std::size_t i = 0; i < 16; ++i) look(bus, memory);
      expect_equal(word_at(bus.local(memory), 0), word, "the word after looks");
      expect_equal(bus.value(memory, first), 1U, "the signal");
    });
}

TEST_CASE("what is held leaves while a rank waits in its bootstrap, and when a window ends") {
  CHECK(peerbus::run_threads(2, [](bootstrap& boot) {
          late_loopback bus{boot, late()};
          const bool is_sender = boot.rank() == rank_id{0};
          const auto memory = bus.make_window({.bytes = 8, .signals = 1}, soon());
          auto other = std::optional{bus.make_window({.bytes = 8, .signals = 1}, soon())};
          const std::uint64_t word = 9;
          if (is_sender)
            expect_ok(bus.put_signal(rank_id{1}, memory, 0, bytes_of(word), first, 1), "put");
          if (!is_sender) expect_ok(bus.wait(memory, first, 1, soon(), rank_id{0}), "wait");
          static_cast<void>(boot.allgather({}, soon(), "the middle"));
          if (is_sender)
            expect_ok(bus.put_signal(rank_id{1}, *other, 0, bytes_of(word), first, 1), "put");
          if (!is_sender) expect_ok(bus.wait(*other, first, 1, soon(), rank_id{0}), "wait");
          other.reset();
          static_cast<void>(boot.allgather({}, soon(), "the end"));
        }) == 0);
}

TEST_CASE("a stall calls its hook, and a limit and a first request bound the faults") {
  std::size_t calls = 0;
  alone([&](bootstrap& boot) {
    fault_schedule schedule = calm();
    schedule.stall = {.chance = 1, .first = 5, .limit = 3};
    schedule.on_stall = [&calls] { ++calls; };
    late_loopback bus{boot, schedule};
    const auto memory = bus.make_window({.bytes = 8, .signals = 1}, soon());
    for (std::uint64_t i = 1; i <= 10; ++i) {
      expect_ok(bus.signal(self, memory, first, i), "signal");
      expect_equal(calls, i < 5 ? 0 : std::min<std::size_t>(i - 4, 3), "stalls after ", i);
    }
    expect_equal(bus.faults().stalled, 3U, "stalls");
  });
  alone([](bootstrap& boot) {
    fault_schedule schedule = calm();
    schedule.stall = fault_rule::once_at(2);
    schedule.stall_time = std::chrono::milliseconds{20};
    late_loopback bus{boot, schedule};
    const auto memory = bus.make_window({.bytes = 8, .signals = 1}, soon());
    expect_ok(bus.signal(self, memory, first, 1), "signal");
    const auto start = std::chrono::steady_clock::now();
    expect_ok(bus.signal(self, memory, first, 2), "a signal after a stall");
    expect(std::chrono::steady_clock::now() - start >= schedule.stall_time, "a stall of 20 ms");
  });
}

TEST_CASE("a request that fails breaks the connection to its peer, and to no other") {
  for (const errc given : {errc::system, errc::peer_dead}) {
    CHECK(peerbus::run_threads(3, [given](bootstrap& boot) {
            fault_schedule schedule = calm();
            if (boot.rank() == rank_id{1}) schedule.fail = fault_rule::once_at(2);
            schedule.fail_with = given;
            late_loopback bus{boot, schedule};
            const auto memory = bus.make_window({.bytes = 16, .signals = 3}, soon());
            const std::uint64_t word = 3;
            const errc later = given == errc::peer_dead ? given : errc::unreachable;
            if (boot.rank() == rank_id{1}) {
              const rank_id peer{2};
              expect_ok(bus.put(peer, memory, 0, bytes_of(word)), "before it");
              expect(bus.describe_trouble().empty(), "no trouble before it");
              expect_code(bus.put_signal(peer, memory, 8, bytes_of(word), first, 1), given, "it");
              expect_equal(bus.describe_trouble(),
                           "request 2 of rank 1, to rank 2, failed by the fault schedule with "
                           "seed 1: " +
                               std::string{peerbus::to_string(given)},
                           "the trouble");
              expect_code(bus.put(peer, memory, 0, bytes_of(word)), later, "put");
              expect_code(bus.signal(peer, memory, first, 1), later, "signal");
              std::uint64_t before = 0;
              expect_code(bus.fetch_add(peer, memory, 0, 1, before), later, "fetch_add");
              expect_code(bus.flush(peer), later, "flush");
              expect_code(bus.quiet(), later, "quiet");
              expect_code(bus.wait(memory, first, 1, soon(), peer), later, "wait for it");
              expect_code(bus.wait(memory, first, 1, soon(), std::nullopt), later, "wait for any");
              expect_ok(bus.put_signal(rank_id{0}, memory, 0, bytes_of(word), first, 1), "other");
              expect_ok(bus.flush(rank_id{0}), "flush of another");
              expect_equal(bus.faults().failed, 1U, "failures");
            }
            if (boot.rank() == rank_id{0})
              expect_ok(bus.wait(memory, first, 1, soon(), rank_id{1}), "a signal of rank 1");
            static_cast<void>(boot.allgather({}, soon(), "they met"));
            if (boot.rank() == rank_id{2}) {
              expect_equal(word_at(bus.local(memory), 0), word, "what was put before it");
              expect_equal(word_at(bus.local(memory), 1), 0U, "the put that failed");
              expect_equal(bus.value(memory, first), 0U, "its signal");
            }
          }) == 0);
  }
}

TEST_CASE("a call that fails ends an exchange on all ranks, and the error names it") {
  for (const std::uint64_t request : {1U, 4U, 9U})
    for (const errc given : {errc::system, errc::peer_dead}) {
      CAPTURE(request);
      const test::tally ended;
      CHECK(peerbus::run_threads(3, [&](bootstrap& boot) {
              fault_schedule schedule;
              const bool fails = boot.rank() == rank_id{1};
              if (fails) schedule.fail = fault_rule::once_at(request);
              schedule.fail_with = given;
              peerbus::communicator comm{any_transport{late_loopback{boot, schedule}},
                                         {.timeout = std::chrono::minutes{10}}};
              if (fails)
                test::expect_error(given,
                                   {"request " + std::to_string(request) + " of rank 1, to rank ",
                                    "failed by the fault schedule with seed 1"},
                                   [&] { test::do_a_round(comm); });
              else
                test::expect_error(errc::peer_dead, {"rank 1"}, [&] { test::do_a_round(comm); });
              ended.add();
            }) == 0);
      CHECK(ended.count() == 3);
    }
}

TEST_CASE("a rank that is dropped says nothing more, and its peers wait in vain") {
  CHECK(peerbus::run_threads(2, [](bootstrap& boot) {
          std::size_t dropped = 0;
          fault_schedule schedule = late();
          if (boot.rank() == rank_id{0}) schedule.drop = fault_rule::once_at(3);
          schedule.on_drop = [&dropped] { ++dropped; };
          late_loopback bus{boot, schedule};
          const auto memory = bus.make_window({.bytes = 8, .signals = 1}, soon());
          const std::uint64_t word = 1;
          if (boot.rank() == rank_id{0}) {
            expect_ok(bus.put_signal(rank_id{1}, memory, 0, bytes_of(word), first, 1), "before");
            expect_code(bus.put(rank_id{1}, memory, 0, bytes_of(word)), errc::peer_dead, "then");
            expect_code(bus.wait(memory, first, 0, soon(), rank_id{1}), errc::peer_dead, "wait");
            expect_code(bus.flush(rank_id{1}), errc::peer_dead, "flush");
            expect_code(bus.quiet(), errc::peer_dead, "quiet");
            expect_equal(dropped, 1U, "calls of on_drop");
            expect_equal(bus.faults().dropped, 1U, "faults");
            expect(bus.describe_trouble().starts_with("rank 0 was dropped at its request 3 by"),
                   "what happened");
          }
          static_cast<void>(boot.allgather({}, soon(), "they met"));
          if (boot.rank() == rank_id{1}) {
            expect_equal(word_at(bus.local(memory), 0), 0U, "what was held");
            expect_code(bus.wait(memory, first, 1, at_once(), rank_id{0}), errc::timed_out, "wait");
          }
          static_cast<void>(boot.allgather({}, soon(), "the end"));
        }) == 0);
}

TEST_CASE("a rank that is killed at a request is named to its peers") {
  const test::tally told;
  const int worst_status = peerbus::run_local(3, [&](bootstrap& boot) {
    fault_schedule schedule;
    if (boot.rank() == rank_id{2}) schedule.drop = fault_rule::once_at(5);
    schedule.on_drop = [] { ::raise(SIGKILL); };
    peerbus::communicator comm{any_transport{peerbus::fault<peerbus::unified_bus>{boot, schedule}},
                               {.timeout = std::chrono::minutes{10}}};
    test::expect_error(errc::peer_dead, {"rank 2 died"}, [&] { test::do_a_round(comm); });
    told.add();
  });
  CHECK(worst_status == 128 + SIGKILL);
  CHECK(told.count() == 2);
}

TEST_CASE("a put with wrong bounds stays in the window, and whoever compares notices it") {
  for (std::uint64_t seed = 1; seed <= 200; ++seed)
    alone([seed](bootstrap& boot) {
      constexpr std::size_t bytes = 40;
      const std::size_t offset = seed % (bytes - 11);
      const std::size_t count = 1 + seed % 11;
      fault_schedule schedule = calm();
      schedule.seed = seed;
      schedule.corrupt = always;
      late_loopback bus{boot, schedule};
      const auto memory = bus.make_window({.bytes = bytes, .signals = 1}, soon());
      const std::vector<std::byte> source(count, std::byte{1});
      expect_ok(bus.put_signal(self, memory, offset, source, first, 1), "put_signal");
      expect_ok(bus.wait(memory, first, 1, soon(), self), "wait");
      const auto got = bus.local(memory).subspan(offset, count);
      expect(!std::equal(got.begin(), got.end(), source.begin()), "seed ", seed, ": other bytes");
      expect(std::ranges::count(bus.local(memory), std::byte{1}) <= static_cast<long>(count),
             "no more bytes than were put");
      expect_equal(bus.faults().corrupted, 1U, "faults");
      // A put that fills its window can only lose bytes, and an empty one is spared.
      const std::vector<std::byte> all(bytes, std::byte{2});
      expect_ok(bus.put(self, memory, 0, all), "put of a whole window");
      expect(bus.local(memory).back() != std::byte{2}, "the last byte");
      expect_ok(bus.put(self, memory, bytes, {}), "empty put");
      expect_equal(bus.faults().corrupted, 2U, "faults");
    });
  // Processes, as a put that moves may meet another one of another rank.
  CHECK(peerbus::run_local(2, [](bootstrap& boot) {
          fault_schedule schedule;
          if (boot.rank() == rank_id{0}) schedule.corrupt = {.chance = 1, .limit = 4};
          peerbus::communicator comm{
              any_transport{peerbus::fault<peerbus::unified_bus>{boot, schedule}}};
          bool was_noticed = false;
          try {
            test::put_to_all(comm, 100);
          } catch (const test::failure&) {
            was_noticed = true;
          } catch (const peerbus::error&) {  // The other rank has noticed it, and left.
            was_noticed = true;
          }
          expect(was_noticed, "somebody to notice");
        }) == 0);
}

TEST_CASE("an exchange is right to the last bit under delays, other orders and stalls") {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    CAPTURE(seed);
    CHECK(
        peerbus::run_threads(4, [seed](bootstrap& boot) {
          fault_schedule schedule;
          schedule.seed = seed;
          schedule.delay.chance = 0.15 * static_cast<double>(seed);
          schedule.longest_delay = seed * seed;
          schedule.stall = {.chance = 0.01, .limit = 20};
          schedule.stall_time = std::chrono::microseconds{300};
          late_loopback bus{boot, schedule};
          peerbus::communicator comm{
              any_transport{peerbus::transport_decorator<late_loopback&>{bus}}};
          for (const std::size_t in_flight : {1U, 2U})
            conformance::run_case<peerbus::codec::int8_per_token>(
                comm,
                {.experts = 12, .hidden = 48, .top_k = 4, .max_tokens = 8, .in_flight = in_flight},
                peerbus::moe::compact{}, 4);
          const fault_counts given = bus.faults();
          expect(given.delayed > 10 && given.reordered > 10, "faults");
        }) == 0);
  }
  CHECK(peerbus::run_local(3, [](bootstrap& boot) {
          peerbus::communicator comm{
              any_transport{peerbus::fault<peerbus::unified_bus>{boot, {.seed = 9}}}};
          test::do_a_round(comm);
        }) == 0);
}

TEST_CASE("planes whose far plane has faults") {
  using far = peerbus::fault<peerbus::loopback>;
  CHECK(peerbus::run_threads(4, [](bootstrap& boot) {
          peerbus::planes<peerbus::loopback, far> bus{
              boot, {.group = boot.rank().index() % 2 == 0 ? "even" : "odd"}};
          peerbus::communicator comm{any_transport{std::move(bus)}};
          test::do_a_round(comm);
          test::put_to_all(comm, 100);
        }) == 0);
}

TEST_CASE("threads of a rank, each with a window of its own") {
  constexpr std::size_t threads = 3;
  CHECK(peerbus::run_threads(2, [](bootstrap& boot) {
          late_loopback bus{boot};
          std::vector<late_loopback::window> windows;
          for (std::size_t t = 0; t < threads; ++t)
            windows.push_back(bus.make_window({.bytes = 16, .signals = 1}, soon()));
          const rank_id peer{1 - boot.rank().index()};
          std::array<errc, threads> codes{};
          {
            std::vector<std::jthread> running;
            for (std::size_t t = 0; t < threads; ++t)
              running.emplace_back([&, t] {
                std::array<std::uint64_t, 2> words{};
                for (std::uint64_t i = 1; i <= 40 && codes[t] == errc::ok; ++i) {
                  words.fill(i);  // The answer to the signal before proves that it was read.
                  for (std::size_t w = 0; w < 2; ++w)
                    if (codes[t] == errc::ok)
                      codes[t] = bus.put(peer, windows[t], w * 8, bytes_of(words[w]));
                  if (codes[t] == errc::ok)
                    codes[t] = bus.signal(peer, windows[t], first, 2 * i - 1);
                  if (codes[t] == errc::ok)
                    codes[t] = bus.wait(windows[t], first, 2 * i - 1, soon(), peer);
                  for (std::size_t w = 0; w < 2; ++w)
                    if (codes[t] == errc::ok && word_at(bus.local(windows[t]), w) != i)
                      codes[t] = errc::mismatch;
                  if (codes[t] == errc::ok) codes[t] = bus.signal(peer, windows[t], first, 2 * i);
                  if (codes[t] == errc::ok)
                    codes[t] = bus.wait(windows[t], first, 2 * i, soon(), peer);
                }
              });
          }
          for (const errc code : codes) expect_ok(code, "a thread");
          static_cast<void>(boot.allgather({}, soon(), "end"));
        }) == 0);
}

TEST_CASE("memory outside windows is refused where the inner transport does not take it") {
  alone([](bootstrap& boot) {
    peerbus::fault<test::indirect<peerbus::loopback>> bus{boot, late()};
    const auto memory = bus.make_window({.bytes = 16, .signals = 1}, soon());
    std::uint64_t word = 8;
    expect_code(bus.put(self, memory, 0, bytes_of(word)), errc::invalid_argument, "put");
    expect_code(bus.put_signal(self, memory, 0, bytes_of(word), first, 1), errc::invalid_argument,
                "put_signal");
    expect_code(bus.get(self, memory, 0, std::as_writable_bytes(std::span{&word, 1})),
                errc::invalid_argument, "get");
    expect_ok(bus.put(self, memory, 8, bus.local(memory).first(8)), "put from a window");
    expect_ok(bus.quiet(), "quiet");
  });
}

TEST_CASE("an error of the inner transport is told by the next call to the peer") {
  class breaking : public peerbus::transport_decorator<peerbus::loopback> {
   public:
    using transport_decorator::transport_decorator;
    [[nodiscard]] errc put(rank_id, const window&, std::size_t,
                           std::span<const std::byte>) noexcept {
      return errc::timed_out;
    }
  };
  alone([](bootstrap& boot) {
    peerbus::fault<breaking> bus{boot, late()};
    const auto memory = bus.make_window({.bytes = 8, .signals = 1}, soon());
    const std::uint64_t word = 8;
    expect_ok(bus.put_signal(self, memory, 0, bytes_of(word), first, 1), "calls that are held");
    expect_code(bus.flush(self), errc::timed_out, "flush");
    expect_equal(bus.value(memory, first), 0U, "the signal behind a put that failed");
    expect_code(bus.signal(self, memory, first, 1), errc::timed_out, "signal");
    expect_code(bus.wait(memory, first, 1, soon(), self), errc::timed_out, "wait");
  });
}

TEST_CASE("a schedule that makes no sense is refused") {
  const auto refused = [](const char* says, const std::function<void(fault_schedule&)>& change) {
    alone([&](bootstrap& boot) {
      fault_schedule schedule;
      change(schedule);
      test::expect_error(errc::invalid_argument, {says},
                         [&] { late_loopback bus{boot, schedule}; });
    });
  };
  refused("a chance is 2", [](auto& schedule) { schedule.fail.chance = 2; });
  refused("a chance is -", [](auto& schedule) { schedule.delay.chance = -1; });
  refused("longest_delay is 0", [](auto& schedule) { schedule.longest_delay = 0; });
  refused("held_calls is 1", [](auto& schedule) { schedule.held_calls = 1; });
  refused("fail_with is ok", [](auto& schedule) { schedule.fail_with = errc::ok; });
}

}  // namespace fault_test
