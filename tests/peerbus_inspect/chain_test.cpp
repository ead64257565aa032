// SPDX-License-Identifier: MIT

#include "chain.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/activity.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/bootstrap/observed_group.hpp>
#include <peerbus/core/rank.hpp>

namespace chain_test {
namespace {

using namespace std::chrono_literals;
using peerbus::group_operation;
using peerbus::observed_rank;
using peerbus::operation_phase;
using peerbus::process_state;
using peerbus::rank_state;
using peerbus_inspect::finding;

/// Ranks in an order of their own.
struct group {
  std::vector<observed_rank> ranks{};
  std::vector<bool> waits_elsewhere{};

  group& add(std::optional<peerbus::activity> latest, process_state is = process_state::running,
             rank_state announced = rank_state::running, pid_t process = 1) {
    ranks.push_back({peerbus::rank_id{ranks.size()}, process, is, announced, latest});
    waits_elsewhere.push_back(false);
    return *this;
  }
  group& wait(group_operation operation, std::uint64_t number, std::chrono::nanoseconds since = 4s,
              operation_phase phase = operation_phase::whole) {
    return add(peerbus::activity{{operation, phase, number}, false, since, 0ms});
  }
  group& done(group_operation operation, std::uint64_t number, std::chrono::nanoseconds since = 4s,
              operation_phase phase = operation_phase::whole) {
    return add(peerbus::activity{{operation, phase, number}, true, since, since});
  }
  [[nodiscard]] peerbus_inspect::diagnosis ask(bool is_whole = true) const {
    return peerbus_inspect::diagnose(ranks, is_whole, waits_elsewhere, 100ms);
  }
};

using places = std::vector<std::size_t>;
constexpr auto barrier = group_operation::barrier;
constexpr auto dispatch = group_operation::dispatch;
constexpr auto combine = group_operation::combine;
constexpr auto rows = operation_phase::rows;
constexpr auto outputs = operation_phase::outputs;

TEST_CASE("the chain ends at the rank that waits for nobody") {
  group seen;  // 2 waits for 1, which waits for 0, which computes.
  seen.done(dispatch, 16, 5s, rows).wait(combine, 16, 4s).wait(dispatch, 17, 3s, rows);
  const auto answer = seen.ask();
  CHECK(answer.found == finding::busy);
  CHECK(answer.culprits == places{0});
  CHECK(answer.waiters == places{1, 2});
  // The numbers do not say whether combine 16 or dispatch 17 comes first.
  CHECK(answer.waits_for == std::vector<places>{{}, {0, 2}, {0, 1}});
}

TEST_CASE("a rank that is done with an operation is not what keeps others in it") {
  group seen;
  seen.wait(dispatch, 17, 4s, rows).done(dispatch, 17, 4s, rows).done(dispatch, 16, 4s, rows);
  CHECK(seen.ask().culprits == places{2});
  CHECK(seen.ask().waits_for[0] == places{2});
  // In a phase of the same operation that comes earlier, it is.
  group phases;
  phases.wait(dispatch, 17, 4s, rows).done(dispatch, 17, 4s, operation_phase::counts);
  CHECK(phases.ask().culprits == places{1});
  // Late weights come before the outputs.
  group late;
  late.wait(combine, 17, 4s, outputs).done(combine, 17, 4s, outputs);
  late.done(combine, 17, 4s, operation_phase::weights);
  CHECK(late.ask().culprits == places{2});
}

TEST_CASE("a rank that computes in another batch or exchange is named, not those that wait") {
  const auto expect_rank_2 = [](const group& seen) {
    const auto answer = seen.ask();
    CHECK(answer.found == finding::busy);
    CHECK(answer.culprits == places{2});
    CHECK(answer.waiters == places{0, 1});
  };
  group in_flight;
  in_flight.wait(combine, 5, 4s, outputs).wait(combine, 5, 4s, outputs).done(dispatch, 6, 4s, rows);
  expect_rank_2(in_flight);
  group layers;  // Two exchanges, each of which counts for itself.
  layers.wait(dispatch, 5, 4s, rows).wait(dispatch, 5, 4s, rows).done(combine, 5, 4s, outputs);
  expect_rank_2(layers);
  group ahead;  // The number of the one exchange is ahead of that of the other.
  ahead.wait(dispatch, 5, 4s, rows).wait(dispatch, 5, 4s, rows).done(dispatch, 7, 4s, rows);
  expect_rank_2(ahead);
  group all_wait;  // All have sent what the others wait for.
  all_wait.wait(combine, 5, 4s, outputs).wait(combine, 5, 4s, outputs);
  CHECK(all_wait.ask().found == finding::mismatch);
}

TEST_CASE("stopped and ended processes are named before any that computes, and at once") {
  group seen;
  seen.wait(barrier, 3, 1ms).done(barrier, 2);
  CHECK(seen.ask().found == finding::moving);
  seen.add(std::nullopt, process_state::gone).add(std::nullopt, process_state::gone);
  CHECK(seen.ask().found == finding::gone);
  CHECK(seen.ask().culprits == places{2, 3});
  seen.ranks[3].announced = rank_state::followed;  // because of the other one
  CHECK(seen.ask().culprits == places{2});
  seen.add(seen.ranks[0].latest, process_state::stopped);
  CHECK(seen.ask().found == finding::stopped);
  CHECK(seen.ask().culprits == places{4});
  CHECK(seen.ask().waiters.empty());  // It has come to the barrier.
  seen.ranks[4].latest->wait.number = 2;
  CHECK(seen.ask().waiters == places{0});
}

TEST_CASE("different operations, or numbers, of ranks that all wait are a mismatch") {
  group operations;
  operations.wait(group_operation::all_reduce, 2).wait(barrier, 1, 5s);
  operations.wait(group_operation::all_reduce, 2);
  CHECK(operations.ask().found == finding::mismatch);
  CHECK(operations.ask().culprits == places{0, 1, 2});
  group numbers;
  numbers.wait(barrier, 4).wait(barrier, 3);
  CHECK(numbers.ask().found == finding::mismatch);
  CHECK(numbers.ask().waits_for == std::vector<places>{{1}, {}});
  // While it is not clear that they stay there, it is none.
  group brief;
  brief.wait(group_operation::all_reduce, 2, 20ms).wait(barrier, 1, 20ms);
  CHECK(brief.ask().found == finding::moving);
  // Nor if a rank moves from one wait to the next.
  group signals;
  signals.wait(barrier, 1).wait(group_operation::signal, 900, 1ms);
  CHECK(signals.ask().found == finding::busy);
  CHECK(signals.ask().culprits == places{1});
  CHECK(signals.ask().waiters == places{0});
  // Nor if a rank has come to neither.
  operations.done(barrier, 0);
  CHECK(operations.ask().found == finding::busy);
  CHECK(operations.ask().culprits == places{3});
}

TEST_CASE("ranks that have left count for nothing, and all of them are the end") {
  group seen;
  seen.add(std::nullopt, process_state::gone, rank_state::left);
  seen.add(std::nullopt, process_state::running, rank_state::excluded);
  CHECK(seen.ask().found == finding::ended);
  seen.wait(barrier, 1).done(barrier, 0);
  CHECK(seen.ask().culprits == places{3});
  CHECK(seen.ask().waits_for[2] == places{3});
}

TEST_CASE("a rank that has not come, waits in another group or is not seen") {
  group seen;
  seen.wait(barrier, 1).add(std::nullopt, process_state::unknown, rank_state::running, 0);
  CHECK(seen.ask().found == finding::busy);
  CHECK(seen.ask().culprits == places{1});
  seen.done(barrier, 0);
  seen.waits_elsewhere[1] = true;
  CHECK(seen.ask().culprits == places{2});
  seen.waits_elsewhere[2] = true;
  CHECK(seen.ask().found == finding::elsewhere);
  CHECK(seen.ask().culprits == places{1, 2});
  group part;
  part.wait(barrier, 1).wait(barrier, 1);
  CHECK(part.ask(false).found == finding::elsewhere);
  CHECK(part.ask(false).culprits.empty());
}

TEST_CASE("signals and allgathers have no numbers that could be compared") {
  group seen;
  seen.wait(group_operation::signal, 9, 4s).wait(group_operation::signal, 2, 3s);
  CHECK(seen.ask().waits_for == std::vector<places>{{1}, {0}});
  group meeting;
  meeting.wait(group_operation::allgather, 0).done(group_operation::allgather, 0);
  CHECK(meeting.ask().culprits == places{1});
}

}  // namespace
}  // namespace chain_test
