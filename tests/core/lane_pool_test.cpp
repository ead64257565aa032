// SPDX-License-Identifier: MIT
// ctest: tsan timeout=120
#include <algorithm>
#include <atomic>
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
#include <peerbus/core/lane_pool.hpp>

#include "support/on_lanes.hpp"

namespace lane_pool_test {

namespace {

using peerbus::deadline;
using peerbus::errc;
using peerbus::error;
using peerbus::lane;
using peerbus::detail::lane_pool;

constexpr auto unfit = [](errc code, const std::string& text) { throw error{code, text}; };
constexpr auto patient = [] { return deadline::after(std::chrono::seconds{100}); };
constexpr auto impatient = [] { return deadline::after(std::chrono::milliseconds{30}); };

/// Carries out `operation` by `lanes` lanes.
template <class Operation>
void carry_out(lane_pool& pool, std::size_t lanes, Operation operation) {
  test::on_lanes(lanes, [&](lane as) { pool.carry_out(as, operation, patient, unfit); });
}

/// How often each of `items` items is done, and by how many lanes.
struct tally {
  explicit tally(std::size_t items) : done(items) {}
  std::vector<std::uint32_t> done;  // Plain memory: only the pool orders it.
  std::atomic<std::uint64_t> lanes{0};
  std::atomic<std::size_t> misplaced{0};

  void note(std::size_t index, std::size_t begin, std::size_t end, std::size_t granule) {
    lanes.fetch_or(std::uint64_t{1} << index);
    if (begin % granule != 0 || (end % granule != 0 && end != done.size())) ++misplaced;
    for (std::size_t i = begin; i < end; ++i) ++done[i];
  }
};

}  // namespace

TEST_CASE("each item is done once, in whole granules, by no more lanes than asked for") {
  lane_pool pool;
  for (const std::size_t lanes : {1U, 2U, 3U, 5U})
    for (const std::size_t items : {0U, 1U, 63U, 64U, 65U, 1000U})
      for (const std::size_t granule : {1U, 64U})
        for (const std::size_t most : {1U, 2U, 64U}) {
          CAPTURE(lanes);
          CAPTURE(items);
          CAPTURE(granule);
          CAPTURE(most);
          tally found{items};
          carry_out(pool, lanes, [&] {
            CHECK(pool.lanes() == lanes);
            for (int round = 0; round < 3; ++round)
              pool.share(
                  items, granule,
                  [&](std::size_t index, std::size_t begin, std::size_t end) {
                    found.note(index, begin, end, granule);
                  },
                  most);
          });
          CHECK(pool.lanes() == 1);
          CHECK(found.misplaced == 0);
          CHECK(found.done == std::vector<std::uint32_t>(items, 3));
          // One lane takes all items, even if there are none.
          const std::size_t shares = std::min(lanes, most);
          if (lanes > 1) CHECK(found.lanes < std::uint64_t{1} << shares);
          if (items >= 64 * shares) CHECK(found.lanes == (std::uint64_t{1} << shares) - 1);
        }
}

TEST_CASE("lane 0 sees what lanes wrote, and lanes see what it wrote before") {
  for (const std::size_t lanes : {2U, 3U, 7U}) {
    CAPTURE(lanes);
    const std::size_t rounds = 6000 / lanes;
    lane_pool pool;
    std::vector<std::uint64_t> values(10 * lanes);
    std::uint64_t given = 0;
    std::uint64_t wrong = 0;
    carry_out(pool, lanes, [&] {
      for (std::size_t round = 1; round <= rounds; ++round) {
        given = round;
        pool.share(values.size(), 1, [&](std::size_t, std::size_t begin, std::size_t end) {
          for (std::size_t i = begin; i < end; ++i) values[i] += given;
        });
        for (const std::uint64_t value : values)
          if (value != round * (round + 1) / 2) ++wrong;
      }
    });
    CHECK(wrong == 0);
  }
}

TEST_CASE("the number of lanes may change, and operations need not share") {
  lane_pool pool;
  std::size_t operations = 0;
  for (std::size_t round = 0; round < 60; ++round)
    carry_out(pool, round % 4 + 1, [&] { ++operations; });
  CHECK(operations == 60);
}

TEST_CASE("all lanes throw what an operation throws, and the pool remains usable") {
  lane_pool pool;
  std::vector<std::string> thrown(3);
  std::vector<std::exception_ptr> others(3);
  for (const bool is_error : {true, false})
    test::on_lanes(3, [&](lane as) {
      try {
        pool.carry_out(
            as,
            [&] {
              pool.share(3, 1, [](std::size_t, std::size_t, std::size_t) {});
              if (is_error) throw error{errc::refused, "no"};
              throw std::out_of_range{"far"};
            },
            patient, unfit);
      } catch (const error& problem) {
        thrown[as.index] = problem.text();
      } catch (...) {
        others[as.index] = std::current_exception();
      }
    });
  CHECK(thrown == std::vector<std::string>(3, "no"));
  for (const std::exception_ptr& problem : others) {
    REQUIRE(problem);
    CHECK_THROWS_AS(std::rethrow_exception(problem), std::out_of_range);
  }
  tally found{9};
  carry_out(pool, 3, [&] {
    pool.share(9, 1, [&](std::size_t index, std::size_t begin, std::size_t end) {
      found.note(index, begin, end, 1);
    });
  });
  CHECK(found.lanes == 7);
}

TEST_CASE("a lane that does not come is named, and nothing is carried out") {
  for (const std::size_t missing : {0U, 1U, 2U}) {
    lane_pool pool;
    std::vector<std::string> thrown(3);
    std::atomic<bool> is_carried_out = false;
    test::on_lanes(3, [&](lane as) {
      if (as.index == missing) return;
      try {
        pool.carry_out(as, [&] { is_carried_out = true; }, impatient, unfit);
      } catch (const error& problem) {
        thrown[as.index] = problem.text();
        if (problem.code() != errc::timed_out) thrown[as.index] += ", not timed out";
      }
    });
    for (std::size_t i = 0; i < 3; ++i)
      CHECK(thrown[i] ==
            (i == missing ? "" : "lane " + std::to_string(missing) + " did not come in time"));
    CHECK_FALSE(is_carried_out);
  }
}

TEST_CASE("a lane that has timed out is not waited for") {
  // Lane 1 gives up before lane 0 comes, so that its share is left to lane 0.
  lane_pool pool;
  tally found{100};
  std::string thrown;
  std::thread hasty{[&] {
    try {
      pool.carry_out(lane{1, 2}, [] {}, impatient, unfit);
    } catch (const error& problem) {
      thrown = problem.text();
    }
  }};
  hasty.join();
  CHECK(thrown == "lane 0 did not come in time");
  CHECK_THROWS_AS(pool.carry_out(
                      lane{0, 2},
                      [&] {
                        pool.share(100, 1, [&](std::size_t i, std::size_t begin, std::size_t end) {
                          found.note(i, begin, end, 1);
                        });
                      },
                      patient, unfit),
                  error);
  CHECK(found.done == std::vector<std::uint32_t>(100, 1));
}

}  // namespace lane_pool_test
