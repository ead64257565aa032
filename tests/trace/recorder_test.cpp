// SPDX-License-Identifier: MIT
// ctest: tsan
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/activity.hpp>
#include <peerbus/bootstrap/event_listener.hpp>
#include <peerbus/codec/bf16.hpp>
#include <peerbus/collective.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/trace/chrome_trace.hpp>
#include <peerbus/trace/clock_offset.hpp>
#include <peerbus/trace/job_trace.hpp>
#include <peerbus/trace/recorder.hpp>

#include "support/groups.hpp"
#include "support/on_lanes.hpp"
#include "support/ranks.hpp"
#include "support/sanitized.hpp"

namespace recorder_test {
namespace {

using peerbus::bf16;
using peerbus::errc;
using peerbus::event_kind;
using peerbus::group_operation;
using peerbus::operation_event;
using peerbus::operation_phase;
using peerbus::rank_id;
using direct = test::direct_threads;
using events = std::vector<operation_event>;

constexpr peerbus::moe::exchange_config config{
    .experts = 4, .hidden = 16, .top_k = 2, .max_tokens = 8};

/// Returns the events that have a property.
events those(const events& all, const std::function<bool(const operation_event&)>& has) {
  events found;
  std::ranges::copy_if(all, std::back_inserter(found), has);
  return found;
}
/// Returns the events of a name, except waits.
events called(const events& all, std::string_view name) {
  return those(all, [name](const operation_event& event) {
    return name == event.name && event.kind != event_kind::wait;
  });
}

/// Returns the one event of a name.
operation_event only(const events& all, std::string_view name) {
  const events found = called(all, name);
  test::expect_equal(found.size(), std::size_t{1}, "events called ", name);
  return found[0];
}

/// A call that sends each of 8 tokens to experts 0 and 3: on 2 ranks to both.
struct call {
  [[nodiscard]] peerbus::moe::routing route() const { return {experts, weights}; }

  std::vector<bf16> tokens = std::vector<bf16>(8 * 16, bf16{1.0F});
  std::vector<std::int32_t> experts = [] {
    std::vector<std::int32_t> all;
    for (int t = 0; t < 8; ++t) all.insert(all.end(), {0, 3});
    return all;
  }();
  std::vector<float> weights = std::vector<float>(16, 0.5F);
  std::vector<bf16> out = std::vector<bf16>(8 * 16);
};

/// Runs `body(comm, events)` on 2 ranks with a recorder each.
template <class Body>
void with_recorders(Body body, const peerbus::recorder_options& options = {}) {
  CHECK(direct::run(2, [&](auto& comm) {
          peerbus::recorder own{options};
          comm.members()->listeners().add(own);
          body(comm, own);
          comm.members()->listeners().remove(own);
        }) == 0);
}

/// Returns once rank 0 waits in `what`, and has looked for others in vain.
template <class Comm>
void let_rank_0_wait(Comm& comm, group_operation what) {
  if (comm.rank() == rank_id{0}) return;
  const auto until = comm.default_deadline();
  for (;;) {
    const auto seen = comm.members()->last_seen(rank_id{0});
    if (seen && !seen->is_over && seen->wait.operation == what && seen->heard < seen->since) return;
    test::expect(!until.expired(), "a wait of rank 0");
    std::this_thread::yield();
  }
}

operation_event numbered(std::uint64_t number, event_kind kind = event_kind::operation) {
  return {.kind = kind,
          .what = {.operation = group_operation::dispatch, .number = number},
          .name = "dispatch_recv",
          .begun = static_cast<std::int64_t>(1000 * number),
          .ended = static_cast<std::int64_t>(1000 * number + 500)};
}

}  // namespace

TEST_CASE("events have the times of CLOCK_MONOTONIC, which never go back") {
  const auto kernel_time = [] {
    return std::chrono::nanoseconds{peerbus::deadline::now().time_since_epoch()}.count();
  };
  constexpr std::int64_t exact_to = 20'000;
  const std::int64_t begin = kernel_time();
  std::int64_t last = 0;
  while (last < begin + 5'000'000) {  // Several times as long as a clock goes on by itself.
    const std::int64_t before = kernel_time();
    const std::int64_t time = operation_event::now();
    const std::int64_t after = kernel_time();
    REQUIRE(time >= before - exact_to);
    REQUIRE(time <= after + exact_to);
    REQUIRE(time >= last);
    last = time;
    REQUIRE(operation_event::latest() == time);
  }
}

TEST_CASE("a full ring keeps the latest events, and says how many are lost") {
  peerbus::recorder ring{{.events = 4, .threads = 2}};
  for (std::uint64_t number = 1; number <= 6; ++number) ring.on_end(numbered(number));
  REQUIRE(ring.read().size() == 1);
  const events kept = ring.read()[0];
  REQUIRE(kept.size() == 4);
  for (std::size_t i = 0; i < 4; ++i) CHECK(kept[i].what.number == 3 + i);
  CHECK(ring.lost() == 2);

  // Each thread has a ring, while there are any.
  std::thread{[&] { ring.on_end(numbered(7)); }}.join();
  CHECK(ring.read().size() == 2);
  CHECK(ring.lost() == 2);
  const auto check = [&] {
    std::thread waits{[&] { ring.on_end(numbered(8)); }};
    waits.join();
  };
  check();  // It may have the place of the earlier thread.
  CHECK(ring.lost() <= 3);
  CHECK_THROWS_AS(peerbus::recorder({.events = 0}), peerbus::error);
  CHECK_THROWS_AS(peerbus::recorder({.threads = 0}), peerbus::error);
}

TEST_CASE("a dispatch and a combine: halves, waits within them, and steps with their bytes") {
  with_recorders([](auto& comm, const peerbus::recorder& own) {
    peerbus::moe::exchange moe{comm, config, peerbus::codec::bf16{}};
    call mine;
    let_rank_0_wait(comm, group_operation::dispatch);
    const auto got = moe.dispatch(mine.tokens, mine.route());
    let_rank_0_wait(comm, group_operation::combine);
    moe.combine(got, mine.out);
    const events all = own.read().at(0);
    for (const char* const name : {"dispatch_send", "dispatch_recv", "combine"}) {
      const operation_event whole = only(all, name);
      test::expect_equal(whole.what.number, std::uint64_t{1}, "number of ", name);
      test::expect(whole.kind == event_kind::operation && whole.fault == errc::ok, name);
    }
    // Half of the 16 rows go to the other rank, as bf16, and as many outputs come from there.
    const operation_event rows = only(all, "send rows");
    test::expect_equal(rows.bytes, std::uint64_t{8 * 16 * 2}, "bytes of rows");
    test::expect_equal(rows.what.number, std::uint64_t{1}, "dispatch of rows");
    test::expect_equal(only(all, "sum outputs").bytes, std::uint64_t{8 * 16 * 2}, "outputs");
    // Without staging, there is nothing to publish. Sums begin where the wait ends.
    test::expect(called(all, "publish outputs").empty(), "no event of a step that does nothing");
    const operation_event whole = only(all, "combine");
    test::expect_equal(only(all, "sum outputs").ended, whole.ended, "the end of combine");
    for (const operation_phase of : {operation_phase::counts, operation_phase::outputs}) {
      const events waits = those(all, [of](const operation_event& event) {
        return event.kind == event_kind::wait && event.what.phase == of;
      });
      // What has come already is not waited for.
      if (comm.rank() == rank_id{1} && waits.empty()) continue;
      test::expect_equal(waits.size(), std::size_t{1}, "waits for ", name_of(of));
      test::expect_equal(waits[0].epoch, std::uint64_t{1}, "epoch");
      if (comm.rank() == rank_id{0}) test::expect(waits[0].peer == rank_id{1}, "the last rank");
      const operation_event parent =
          of == operation_phase::counts ? only(all, "dispatch_recv") : whole;
      test::expect(parent.begun <= waits[0].begun && waits[0].ended <= parent.ended,
                   "a wait within its operation");
    }
  });
}

TEST_CASE("a refused operation has a fault, and names the rank that refuses") {
  with_recorders([](auto& comm, const peerbus::recorder& own) {
    peerbus::moe::exchange moe{comm, config, peerbus::codec::bf16{}};
    call mine;
    const bool is_bad = comm.rank() == rank_id{1};
    if (is_bad) mine.experts[5] = 99;
    test::expect_error(is_bad ? errc::invalid_argument : errc::refused, {"99"},
                       [&] { static_cast<void>(moe.dispatch(mine.tokens, mine.route())); });
    const operation_event refused =
        only(own.read().at(0), is_bad ? "dispatch_send" : "dispatch_recv");
    test::expect(refused.fault == (is_bad ? errc::invalid_argument : errc::refused), "the fault");
    test::expect(refused.peer == rank_id{1}, "the rank that refuses");
  });
}

TEST_CASE("a wait that times out has a fault, and names the rank that is missing") {
  std::atomic<bool> has_failed{false};
  with_recorders([&](auto& comm, const peerbus::recorder& own) {
    peerbus::moe::exchange moe{comm, config, peerbus::codec::bf16{}};
    const call mine;
    if (comm.rank() == rank_id{1}) {
      while (!has_failed) std::this_thread::yield();
      return;
    }
    const auto until = peerbus::deadline::after(std::chrono::milliseconds{20});
    test::expect_error(errc::timed_out, {"dispatch 1"}, [&] {
      static_cast<void>(moe.dispatch(mine.tokens, mine.route(), {.until = until}));
    });
    has_failed = true;
    const events failed = those(own.read().at(0), [](const operation_event& event) {
      return event.fault == errc::timed_out;
    });
    test::expect_equal(failed.size(), std::size_t{2}, "the operation and its wait");
    test::expect(failed[0].kind == event_kind::operation, "the operation");
    test::expect(failed[1].kind == event_kind::wait && failed[1].peer == rank_id{1}, "the wait");
  });
}

TEST_CASE("each lane has a ring with its share") {
  with_recorders([](auto& comm, const peerbus::recorder& own) {
    peerbus::moe::exchange moe{comm, config, peerbus::codec::bf16{}};
    call mine;
    test::on_lanes(3, [&](peerbus::lane as) {
      const auto got = moe.dispatch(mine.tokens, mine.route(), {.as = as});
      moe.combine(got, mine.out, {.as = as});
    });
    const auto all = own.read();
    std::uint64_t bytes = 0;
    std::array<bool, 3> has_come{};
    for (const events& thread : all) {
      const events rows = called(thread, "send rows");
      if (rows.empty()) continue;
      bytes += only(thread, "send rows").bytes;
      has_come.at(rows[0].lane) = true;
      test::expect_equal(only(thread, "combine").lane, rows[0].lane, "the lane of a thread");
    }
    test::expect(std::ranges::count(has_come, true) == 3, "rings of 3 lanes");
    test::expect_equal(bytes, std::uint64_t{8 * 16 * 2}, "bytes of all lanes");
  });
}

TEST_CASE("collectives and messages: numbers, bytes, peers and faults") {
  with_recorders([](auto& comm, const peerbus::recorder& own) {
    namespace collective = peerbus::collective;
    collective::team team{comm};
    std::vector<float> mine(100, 1.0F);
    collective::all_reduce(team, mine, collective::sum{});
    auto later = collective::start_all_reduce(team, std::span{mine}, collective::sum{});
    later.finish();
    std::vector<float> more(comm.rank().index() == 0 ? 3 : 4);
    test::expect_error(errc::mismatch, {"all_reduce"},
                       [&] { collective::all_reduce(team, more, collective::sum{}); });
    collective::channels channels{comm};
    const rank_id other{1 - comm.rank().index()};
    std::vector<std::int32_t> sent(7), got(7);
    collective::batch_send_recv(
        channels, std::array{collective::send_to(other, sent), collective::recv_from(other, got)});
    comm.barrier();

    const events all = own.read().at(0);
    const events reduces = called(
        those(all,
              [](const operation_event& event) { return event.kind == event_kind::operation; }),
        "all_reduce");
    test::expect_equal(reduces.size(), std::size_t{2}, "all_reduces");
    test::expect_equal(reduces[0].what.number, std::uint64_t{1}, "number");
    test::expect_equal(reduces[0].bytes, std::uint64_t{400}, "bytes");
    test::expect(reduces[1].fault == errc::mismatch && reduces[1].what.number == 3, "the fault");
    for (const char* const half : {"start", "finish"})
      test::expect_equal(only(all, half).what.number, std::uint64_t{2}, half);
    test::expect_equal(only(those(all,
                                  [](const operation_event& event) {
                                    return event.kind == event_kind::operation;
                                  }),
                            "batch_send_recv")
                           .bytes,
                       std::uint64_t{56}, "bytes of a batch");
    for (const char* const way : {"send", "recv"}) {
      test::expect_equal(only(all, way).bytes, std::uint64_t{28}, way);
      test::expect(only(all, way).peer == other, "the other end");
    }
    const operation_event barrier = only(all, "barrier");
    test::expect(barrier.kind == event_kind::operation && barrier.what.number == 1, "barrier");
    const events waits = those(all, [](const operation_event& event) {
      return event.kind == event_kind::wait && event.what.operation == group_operation::barrier;
    });
    test::expect_equal(waits.size(), std::size_t{1}, "waits of a barrier");
    test::expect(barrier.begun <= waits[0].begun && waits[0].ended == barrier.ended, "its end");
  });
}

TEST_CASE("the offset of a clock is no further off than its error") {
  CHECK(direct::run(3, [](auto& comm) {
          const auto until = comm.default_deadline();
          const auto same = peerbus::measure_clock(comm.boot(), until);
          test::expect(same.nanoseconds == 0 && same.error == 0, "ranks of one kernel");
          // Threads have one clock, so that the right offset is 0.
          const auto found = peerbus::detail::measure_other_clock(comm.boot(), until);
          test::expect(found.error > 0 && found.error < 1'000'000'000, "an error: ", found.error);
          test::expect(std::abs(found.nanoseconds) <= found.error, "an offset of ",
                       found.nanoseconds, " with an error of ", found.error);
        }) == 0);
  // A drift counts in proportion to the time that has passed.
  const peerbus::clock_offset begin{.nanoseconds = 1000, .error = 0, .measured = 100};
  const peerbus::clock_offset end{.nanoseconds = 3000, .error = 0, .measured = 1100};
  CHECK(begin.of_rank_0(100, end) == 1100);
  CHECK(begin.of_rank_0(600, end) == 2600);
  CHECK(begin.of_rank_0(1100, end) == 4100);
  CHECK(begin.of_rank_0(50, begin) == 1050);
}

TEST_CASE("chrome_events: an operation has the bytes and the longest wait of its parts") {
  operation_event whole = numbered(4);
  whole.ended = whole.begun + 100'000;
  operation_event wait = numbered(4, event_kind::wait);
  wait.what.phase = operation_phase::rows;
  wait.begun = whole.begun + 10;
  wait.ended = wait.begun + 70'000;
  wait.peer = rank_id{2};
  operation_event step = numbered(4, event_kind::step);
  step.name = "send rows";
  step.begun = wait.ended;
  step.ended = step.begun + 1;
  step.bytes = 640;
  step.lane = 3;
  peerbus::rank_trace trace{
      .rank = rank_id{1}, .name = "a \"host\"", .threads = {{whole, wait, step}}};
  trace.begin = trace.end = {.nanoseconds = -7, .error = 12'345, .measured = 1};
  const std::string text = peerbus::chrome_events(trace, 1 << 20);
  const auto has = [&](std::string_view part) {
    CHECK_MESSAGE(text.find(part) != std::string::npos, text);
  };
  has(R"({"name":"dispatch_recv","cat":"coll","pid":1,"tid":0,"ph":"X","ts":3.993,"dur":100.000,)"
      R"("args":{"seqNumber":4,"bytes":640,"waited_for":2}})");
  has(R"({"name":"wait for rows","cat":"step",)");
  has(R"("args":{"seqNumber":4,"of":"dispatch","waited_for":2}})");
  has(R"x("args":{"name":"rank 1 (a \"host\")"}})x");
  has(R"("args":{"name":"lane 3"}})");
  has("lost events: 0; clock offset: -0.007 us +- 12.345 us");
  CHECK(peerbus::chrome_events(trace, 0).find("lost events: 3;") != std::string::npos);
  CHECK(peerbus::chrome_events(trace, 0).find("\"X\"") == std::string::npos);
}

TEST_CASE("job_trace: a rank without memory for its events refuses the trace on all ranks") {
  if (test::is_sanitized) return;  // A sanitizer ends the process instead of throwing.
  CHECK(direct::run(3, [](auto& comm) {
          peerbus::recorder_options options;
          if (comm.rank() == rank_id{1}) options.events = std::size_t{1} << 55;
          const auto until = comm.default_deadline();
          test::expect_error(errc::out_of_memory, {"no memory for the events of a trace"},
                             [&] { const peerbus::job_trace none{comm.boot(), until, options}; });
          test::expect(!comm.members()->listeners().any(), "no listener");
          const peerbus::job_trace next{comm.boot(), until};  // Ranks are in step.
        }) == 0);
}

TEST_CASE("job_trace: the events of all ranks in one file") {
  const std::string path = "job_trace.json";
  CHECK(test::direct_processes::run(3, [&](auto& comm) {
          peerbus::job_trace trace{comm.boot(), comm.default_deadline()};
          peerbus::moe::exchange moe{comm, config, peerbus::codec::bf16{}};
          call mine;
          moe.combine(moe.dispatch(mine.tokens, mine.route()), mine.out);
          trace.write(path, comm.default_deadline(), true);
        }) == 0);
  std::ostringstream text;
  text << std::ifstream{path}.rdbuf();
  const std::string all = text.str();
  CHECK(all.starts_with(R"({"displayTimeUnit":"ns","traceEvents":[)"));
  for (const char* const rank : {"0", "1", "2"})
    for (const char* const name : {"dispatch_send", "dispatch_recv", "combine"})
      CHECK(all.find(peerbus::concat(R"({"name":")", name, R"(","cat":"coll","pid":)", rank,
                                     ",")) != std::string::npos);
  std::remove(path.c_str());
}

}  // namespace recorder_test
