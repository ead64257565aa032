// SPDX-License-Identifier: MIT
// ctest: tsan timeout=120
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/lane.hpp>
#include <peerbus/core/lane_barrier.hpp>

namespace lane_barrier_test {

namespace {

using peerbus::deadline;
using peerbus::errc;
using peerbus::error;
using peerbus::lane;
using peerbus::max_lanes;
using peerbus::detail::lane_barrier;

constexpr auto unfit = [](errc code, const std::string& text) { throw error{code, text}; };

deadline patient() { return deadline::after(std::chrono::seconds{100}); }
deadline impatient() { return deadline::after(std::chrono::milliseconds{30}); }

/// Runs `body(index)` on a thread per lane. Returns: what each lane threw, as text.
template <class Body>
std::vector<std::string> on_lanes(std::size_t count, Body body) {
  std::vector<std::string> thrown(count);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < count; ++i)
    threads.emplace_back([&, i] {
      try {
        body(i);
      } catch (const error& caught) {
        thrown[i] = std::string{caught.text()};
        if (caught.code() != errc::invalid_argument)
          thrown[i] += ", " + std::string{to_string(caught.code())};
      }
    });
  for (std::thread& one : threads) one.join();
  return thrown;
}

}  // namespace

TEST_CASE("lanes see what the step wrote, and the step sees what lanes wrote") {
  for (const std::size_t count : {1U, 2U, 3U, 4U, 7U}) {
    CAPTURE(count);
    const std::uint64_t turns = 12'000 / count;
    lane_barrier team;
    std::vector<std::uint64_t> parts(count);  // Plain memory: only the team orders it.
    std::uint64_t sum = 0;
    std::vector<std::uint64_t> wrong(count);
    const auto thrown = on_lanes(count, [&](std::size_t i) {
      for (std::uint64_t turn = 1; turn <= turns; ++turn) {
        parts[i] = turn * (i + 1);
        team.serial(
            {i, count}, patient(),
            [&] {
              sum = 0;
              for (const std::uint64_t part : parts) sum += part;
            },
            unfit);
        if (sum != turn * count * (count + 1) / 2) ++wrong[i];
      }
    });
    for (const std::string& text : thrown) CHECK(text == "");
    for (const std::uint64_t times : wrong) CHECK(times == 0);
  }
}

TEST_CASE("what the step throws is thrown by all lanes, in that turn and no other") {
  for (const std::size_t count : {1U, 2U, 3U, 4U}) {
    CAPTURE(count);
    constexpr std::uint64_t turns = 3'000;
    lane_barrier team;
    std::vector<std::uint64_t> wrong(count);
    const auto thrown = on_lanes(count, [&](std::size_t i) {
      for (std::uint64_t turn = 1; turn <= turns; ++turn) {
        std::string caught;
        try {
          team.serial(
              {i, count}, patient(),
              [&] {
                if (turn % 3 != 0) throw error{errc::refused, "turn " + std::to_string(turn)};
              },
              unfit);
        } catch (const error& problem) {
          if (problem.code() == errc::refused) caught = problem.text();
        }
        if (caught != (turn % 3 != 0 ? "turn " + std::to_string(turn) : "")) ++wrong[i];
      }
    });
    for (const std::string& text : thrown) CHECK(text == "");
    for (const std::uint64_t times : wrong) CHECK(times == 0);
  }
}

TEST_CASE("an exception of another type reaches all lanes as it is") {
  lane_barrier team;
  std::vector<std::exception_ptr> caught(3);  // Kept until all threads have ended.
  on_lanes(3, [&](std::size_t i) {
    try {
      team.serial({i, 3}, patient(), [] { throw std::out_of_range{"far"}; }, unfit);
    } catch (...) {
      caught[i] = std::current_exception();
    }
  });
  for (const std::exception_ptr& one : caught) {
    REQUIRE(one);
    CHECK_THROWS_AS(std::rethrow_exception(one), std::out_of_range);
  }
}

TEST_CASE("the number of lanes may change from one operation to the next") {
  lane_barrier team;
  std::uint64_t steps = 0;
  for (std::size_t round = 0; round < 60; ++round) {
    const std::size_t count = round % 5 + 1;
    const auto thrown = on_lanes(count, [&](std::size_t i) {
      for (int turn = 0; turn < 3; ++turn)
        team.serial({i, count}, patient(), [&] { ++steps; }, unfit);
    });
    for (const std::string& text : thrown) CHECK(text == "");
  }
  CHECK(steps == 180);
}

TEST_CASE("a lane that does not come is named") {
  for (const std::size_t missing : {0U, 1U, 3U}) {
    CAPTURE(missing);
    lane_barrier team;
    bool stepped = false;
    const auto thrown = on_lanes(4, [&](std::size_t i) {
      if (i == missing) return;
      team.serial({i, 4}, impatient(), [&] { stepped = true; }, unfit);
    });
    const std::string expected =
        "lane " + std::to_string(missing) + " did not come in time, timed out";
    for (std::size_t i = 0; i < 4; ++i) CHECK(thrown[i] == (i == missing ? "" : expected));
    CHECK_FALSE(stepped);
  }
}

TEST_CASE("lanes that count differently") {
  lane_barrier team;
  bool stepped = false;
  const auto thrown = on_lanes(2, [&](std::size_t i) {
    team.serial({i, i == 0 ? 2U : 3U}, patient(), [&] { stepped = true; }, unfit);
  });
  CHECK(thrown[0] == "lane 0 says that there are 2 lanes, but lane 1 says 3");
  CHECK(thrown[1] == "lane 1 says that there are 3 lanes, but lane 0 says 2");
  CHECK_FALSE(stepped);

  // Lane 0 believes to be alone: it sees the other if that came first, else it has nobody to wait
  // for, and the other waits for it.
  lane_barrier again;
  const auto alone = on_lanes(
      2, [&](std::size_t i) { again.serial({i, i == 0 ? 1U : 2U}, impatient(), [] {}, unfit); });
  const bool saw = alone[0] == "lane 0 says that it is alone, but other lanes have come";
  CHECK((alone[0].empty() || saw));
  CHECK(alone[1] == "lane 0 did not come in time, timed out");
}

TEST_CASE("lanes in different calls are named, on all lanes") {
  struct names {
    const char* of_0;
    const char* of_2;
    const char* expected;
  };
  static char copy[] = "send";  // Another literal of the same text.
  for (const names& given :
       {names{"send", "receive", "lane 2 calls receive, but lane 0 calls send"},
        {nullptr, "send", "lane 2 calls send, but lane 0 is inside a call"},
        {"send", nullptr, "lane 2 is inside a call, but lane 0 calls send"},
        {"send", copy, ""},
        {nullptr, nullptr, ""}}) {
    lane_barrier team;
    std::size_t steps = 0;
    const auto thrown = on_lanes(3, [&](std::size_t i) {
      team.serial({i, 3}, patient(), [&] { ++steps; }, unfit, i == 2 ? given.of_2 : given.of_0);
      team.serial({i, 3}, patient(), [&] { ++steps; }, unfit);
    });
    for (const std::string& text : thrown) CHECK(text == given.expected);
    CHECK(steps == (std::string{given.expected}.empty() ? 2 : 0));
  }
}

TEST_CASE("an index that comes twice") {
  lane_barrier team;
  bool stepped = false;
  const auto thrown = on_lanes(
      2, [&](std::size_t) { team.serial({1, 3}, impatient(), [&] { stepped = true; }, unfit); });
  CHECK(std::count(thrown.begin(), thrown.end(), "lane 1 came twice") == 1);
  CHECK(std::count(thrown.begin(), thrown.end(), "lane 0 did not come in time, timed out") == 1);

  // Not even lane 0 may: two of it would both do the step.
  lane_barrier again;
  const auto both = on_lanes(
      2, [&](std::size_t) { again.serial({0, 2}, impatient(), [&] { stepped = true; }, unfit); });
  CHECK(std::count(both.begin(), both.end(), "lane 0 came twice") == 1);
  CHECK(std::count(both.begin(), both.end(), "lane 1 did not come in time, timed out") == 1);
  CHECK_FALSE(stepped);
}

TEST_CASE("an index that no lane can have") {
  lane_barrier team;
  for (const lane wrong : {lane{1, 1}, lane{0, 0}, lane{3, 2}, lane{0, max_lanes + 1}}) {
    const std::string expected = "lane " + std::to_string(wrong.index) + " of " +
                                 std::to_string(wrong.count) + ", expected an index below";
    std::string caught;
    try {
      team.serial(wrong, patient(), [] { throw error{errc::system, "stepped"}; }, unfit);
    } catch (const error& problem) {
      caught = problem.text();
    }
    CHECK(caught.substr(0, expected.size()) == expected);
  }
}

TEST_CASE("lanes share any number of items, each item once") {
  for (const std::size_t count : {1U, 2U, 3U, 7U, 64U})
    for (const std::size_t items : {0U, 1U, 2U, 5U, 64U, 1000U}) {
      std::size_t next = 0;
      for (std::size_t i = 0; i < count; ++i) {
        const lane::range mine = lane{i, count}.share(items);
        CHECK(mine.begin == next);
        CHECK(mine.end >= mine.begin);
        next = mine.end;
      }
      CHECK(next == items);
    }
}

}  // namespace lane_barrier_test
