// SPDX-License-Identifier: MIT
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/activity.hpp>
#include <peerbus/bootstrap/event_listener.hpp>
#include <peerbus/bootstrap/event_listeners.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace activity_test {
namespace {

using peerbus::group_operation;
using peerbus::operation_phase;
using peerbus::rank_id;
using peerbus::detail::activity_line;

TEST_CASE("activity_line: every wait is read as it was written") {
  activity_line line;
  CHECK(!line.read());
  for (const std::uint64_t number :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{3} << 32U, (std::uint64_t{1} << 47U) - 1})
    for (std::size_t o = 1; o <= static_cast<std::size_t>(group_operation::reduce_scatter_v); ++o)
      for (std::size_t p = 0; p <= static_cast<std::size_t>(operation_phase::weights); ++p) {
        const peerbus::group_wait wait{static_cast<group_operation>(o),
                                       static_cast<operation_phase>(p), number};
        const auto begun = line.begin(wait);
        CHECK((line.read()->wait == wait && !line.read()->is_over));
        line.end(begun);
        CHECK((line.read()->wait == wait && line.read()->is_over));
      }
}

TEST_CASE("activity_line: a wait has its age, and the rank is heard when it begins or beats") {
  activity_line line;
  line.begin({.operation = group_operation::barrier, .number = 1});
  while (line.read()->since < std::chrono::milliseconds{20}) std::this_thread::yield();
  CHECK(line.read()->heard >= std::chrono::milliseconds{20});
  line.beat();
  const auto seen = *line.read();
  CHECK(seen.since >= std::chrono::milliseconds{20});
  CHECK(seen.heard < seen.since);
}

TEST_CASE("describe: the wait in words") {
  const auto text = [](group_operation operation, operation_phase phase, std::uint64_t number,
                       bool is_over) {
    return describe(peerbus::activity{{operation, phase, number}, is_over, {}, {}});
  };
  CHECK(text(group_operation::dispatch, operation_phase::rows, 17, false) ==
        "waiting for rows of dispatch 17");
  CHECK(text(group_operation::combine, operation_phase::outputs, 16, true) ==
        "done with outputs of combine 16");
  CHECK(text(group_operation::barrier, operation_phase::whole, 4, false) == "waiting in barrier 4");
  CHECK(text(group_operation::allgather, operation_phase::whole, 0, true) == "done with allgather");
}

TEST_CASE("names: all differ") {
  std::vector<std::string> names;
  for (std::size_t o = 0; o <= static_cast<std::size_t>(group_operation::reduce_scatter_v); ++o)
    names.emplace_back(name_of(static_cast<group_operation>(o)));
  for (std::size_t i = 0; i < names.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) CHECK(names[i] != names[j]);
  CHECK(names.back() == "reduce_scatter_v");
}

/// Memberships of 12 ranks with what they write in common.
struct twelve {
  struct memory {
    std::array<peerbus::membership::state_word, 12> states{};
    std::array<activity_line, 12> lines;
  };
  std::shared_ptr<memory> shared = std::make_shared<memory>();

  [[nodiscard]] std::unique_ptr<peerbus::membership> of(std::size_t rank) const {
    std::vector<activity_line*> lines;
    lines.reserve(shared->lines.size());
    for (activity_line& line : shared->lines) lines.push_back(&line);
    return std::make_unique<peerbus::membership>(rank_id{rank}, 12, shared->states.data(), shared,
                                                 std::vector<peerbus::unique_fd>(12), lines);
  }
};

TEST_CASE("membership: what ranks were last seen doing, after 8 of them a count") {
  const twelve ranks;
  const auto me = ranks.of(0);
  const auto other = ranks.of(3);
  CHECK(!me->last_seen(rank_id{3}));
  CHECK(me->describe_last_seen(rank_id{3}) == "not heard yet");
  other->own_activity().begin({group_operation::combine, operation_phase::outputs, 7});
  REQUIRE(me->last_seen(rank_id{3}));
  CHECK(me->last_seen(rank_id{3})->wait.number == 7);
  CHECK(other->last_seen(rank_id{3})->wait.number == 7);
  CHECK(!me->last_seen(rank_id{12}));

  std::vector<rank_id> all;
  for (std::size_t rank = 1; rank < 12; ++rank) all.emplace_back(rank);
  const auto what = [](rank_id rank) { return peerbus::concat("epoch ", rank.index()); };
  const std::string text = me->describe_awaited(all, what);
  CHECK(
      text.starts_with("rank 1 (epoch 1; not heard yet), rank 2 (epoch 2; not heard yet), "
                       "rank 3 (epoch 3; last heard "));
  CHECK(text.find(" ms ago, waiting for outputs of combine 7), rank 4 (epoch 4; ") !=
        std::string::npos);
  CHECK(text.ends_with("rank 8 (epoch 8; not heard yet) and 3 more"));
}

TEST_CASE("membership: a look at the states of others is a sign of life") {
  const twelve ranks;
  const auto me = ranks.of(0);
  const auto other = ranks.of(3);
  other->own_activity().begin({.operation = group_operation::barrier, .number = 1});
  while (me->last_seen(rank_id{3})->heard < std::chrono::milliseconds{20})
    std::this_thread::yield();
  CHECK(other->health(std::nullopt) == peerbus::errc::ok);
  const auto seen = *me->last_seen(rank_id{3});
  CHECK(seen.heard < seen.since);
}

/// Keeps what it is told.
struct kept_events final : peerbus::event_listener {
  explicit kept_events(bool begins = true) noexcept : hears{begins} {}
  [[nodiscard]] bool hears_begins() const noexcept override { return hears; }

  bool hears;
  std::vector<peerbus::operation_event> begun, ended;

  void on_begin(const peerbus::operation_event& event) noexcept override { begun.push_back(event); }
  void on_end(const peerbus::operation_event& event) noexcept override { ended.push_back(event); }
};

TEST_CASE("membership: listeners hear waits, with exact times, until they are removed") {
  const twelve ranks;
  const auto me = ranks.of(0);
  CHECK(!me->listeners().any());
  kept_events events, others, ends{false};
  me->listeners().add(events);
  me->listeners().add(others);
  me->listeners().add(ends);
  const std::int64_t before = peerbus::operation_event::now();
  const auto wait = me->begin_wait({group_operation::dispatch, operation_phase::rows, 17});
  REQUIRE(events.begun.size() == 1);
  CHECK(events.begun[0].ended == 0);
  CHECK((!me->last_seen(rank_id{0})->is_over && me->last_seen(rank_id{0})->wait.number == 17));
  me->end_wait(wait, {.epoch = 5, .last = rank_id{3}});
  CHECK(me->last_seen(rank_id{0})->is_over);
  REQUIRE(events.ended.size() == 1);
  CHECK((ends.begun.empty() && ends.ended.size() == 1));
  CHECK(ends.ended[0].begun == events.begun[0].begun);
  me->listeners().remove(ends);
  const peerbus::operation_event& heard = events.ended[0];
  CHECK(heard.kind == peerbus::event_kind::wait);
  CHECK((heard.what == peerbus::group_wait{group_operation::dispatch, operation_phase::rows, 17}));
  CHECK((before <= heard.begun && heard.begun <= heard.ended));
  CHECK(heard.ended <= peerbus::operation_event::now());
  CHECK((heard.begun == events.begun[0].begun && heard.epoch == 5 && heard.peer == rank_id{3}));

  me->listeners().remove(others);
  const auto failing = me->begin_wait({.operation = group_operation::barrier, .number = 1});
  me->fail_wait(failing, peerbus::errc::timed_out, rank_id{7});
  CHECK(!me->last_seen(rank_id{0})->is_over);  // Other ranks still see what it waited for.
  CHECK((events.ended.size() == 2 && others.ended.size() == 1));
  CHECK((events.ended[1].fault == peerbus::errc::timed_out && events.ended[1].peer == rank_id{7}));
  me->listeners().remove(events);
  CHECK(!me->listeners().any());
  me->end_wait(me->begin_wait({.operation = group_operation::barrier, .number = 2}));
  CHECK(events.ended.size() == 2);
}

TEST_CASE("event_listeners: a part of a group tells of ranks by their numbers in the whole") {
  const auto whole = std::make_shared<peerbus::event_listeners>();
  peerbus::event_listeners early, part;
  early.join(whole, {rank_id{4}, rank_id{7}});
  CHECK(!early.any());  // It was made before anybody listened.
  kept_events events;
  whole->add(events);
  part.join(whole, {rank_id{4}, rank_id{7}});
  CHECK(part.any());
  part.tell_begin({.name = "combine", .peer = rank_id{1}});
  part.tell_end({.name = "combine", .peer = rank_id{0}});
  part.tell_end({.name = "barrier"});
  REQUIRE((events.begun.size() == 1 && events.ended.size() == 2));
  CHECK((events.begun[0].peer == rank_id{7} && events.ended[0].peer == rank_id{4}));
  CHECK(!events.ended[1].peer);
}

TEST_CASE("membership: ranks that share no memory see nothing of each other") {
  const auto states = std::make_shared<std::array<peerbus::membership::state_word, 2>>();
  const peerbus::membership members{rank_id{0}, 2, states->data(), states, {}};
  members.own_activity().begin({.operation = group_operation::barrier, .number = 1});
  CHECK(members.last_seen(rank_id{0}));
  CHECK(!members.last_seen(rank_id{1}));
  CHECK(members.describe_last_seen(rank_id{1}).empty());
  const std::vector<rank_id> peer{rank_id{1}};
  CHECK(members.describe_awaited(peer, [](rank_id) { return std::string{"epoch 0"}; }) ==
        "rank 1 (epoch 0)");
}

}  // namespace
}  // namespace activity_test
