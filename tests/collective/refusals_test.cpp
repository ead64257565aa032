// SPDX-License-Identifier: MIT
// ctest: tsan timeout=300
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/collective/all_gather.hpp>
#include <peerbus/collective/all_reduce.hpp>
#include <peerbus/collective/all_to_all.hpp>
#include <peerbus/collective/broadcast.hpp>
#include <peerbus/collective/gather.hpp>
#include <peerbus/collective/reduce.hpp>
#include <peerbus/collective/reduce_scatter.hpp>
#include <peerbus/collective/reduction.hpp>
#include <peerbus/collective/scatter.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>

#include "support/groups.hpp"
#include "support/ranks.hpp"

namespace refusals_test {

namespace {

namespace coll = peerbus::collective;
using coll::team;
using peerbus::errc;
using peerbus::rank_id;

/// Operands of a rank for one bad call, and how the call fails.
struct fixture {
  team& on;
  std::vector<float> four = std::vector<float>(4, 1.0F);
  std::vector<float> out = std::vector<float>(4 * on.size(), -7.0F);
  std::vector<float> rows = std::vector<float>(4 * on.size(), 2.0F);
  std::span<float> null{static_cast<float*>(nullptr), 4};

  explicit fixture(team& ranks) : on{ranks} {}
  [[nodiscard]] std::span<float> first(std::size_t count) { return std::span{out}.first(count); }
};

struct bad_call {
  std::string_view wrong;
  std::function<void(fixture&)> bad;
  std::function<void(fixture&)> good;
};

std::vector<bad_call> bad_calls(std::size_t n) {
  const auto gather = [](fixture& f) { coll::all_gather(f.on, f.four, f.out); };
  const auto reduce = [](fixture& f) { coll::all_reduce(f.on, f.four, f.first(4), coll::sum{}); };
  const auto broadcast = [](fixture& f) { coll::broadcast(f.on, f.first(4), rank_id{0}); };
  std::vector<bad_call> all{
      {"an input that is null but 4 elements long",
       [](fixture& f) { coll::all_gather(f.on, f.null, f.out); }, gather},
      {"an output of 3 elements, expected",
       [](fixture& f) { coll::all_gather(f.on, f.four, f.first(3)); }, gather},
      {"an output that is null but 4 elements long",
       [](fixture& f) { coll::all_reduce(f.on, f.four, f.null, coll::sum{}); }, reduce},
      {"an output of 3 elements, expected 4",
       [](fixture& f) { coll::all_reduce(f.on, f.four, f.first(3), coll::sum{}); }, reduce},
      {"overlap",
       [](fixture& f) {
         std::vector<float> both(5);
         coll::all_reduce(f.on, std::span{both}.first(4), std::span{both}.last(4), coll::sum{});
       },
       reduce},
      {"root rank 64, expected a rank below",
       [](fixture& f) { coll::broadcast(f.on, f.first(4), rank_id{64}); }, broadcast},
      {"an input of 5 elements, expected",
       [](fixture& f) {
         const std::vector<float> five(5);
         coll::reduce_scatter(f.on, five, f.first(4), coll::sum{});
       },
       [](fixture& f) { coll::reduce_scatter(f.on, f.rows, f.first(4), coll::sum{}); }},
      {"an input of 1 elements, expected",
       [](fixture& f) { coll::scatter(f.on, std::span{f.rows}.first(1), f.first(4), f.on.rank()); },
       [n](fixture& f) { coll::scatter(f.on, f.rows, f.first(4), rank_id{n - 1}); }},
      {"an output of 2 elements, expected",
       [](fixture& f) { coll::gather(f.on, f.four, f.first(2), f.on.rank()); },
       [n](fixture& f) { coll::gather(f.on, f.four, f.out, rank_id{n - 1}); }},
      {"an output of 2 elements, expected 4",
       [](fixture& f) { coll::reduce(f.on, f.four, f.first(2), coll::sum{}, f.on.rank()); },
       [n](fixture& f) { coll::reduce(f.on, f.four, f.first(4), coll::sum{}, rank_id{n - 1}); }}};
  if (n > 1)
    all.push_back({"expected a multiple of the number of ranks",
                   [](fixture& f) {
                     const std::size_t count = 4 * f.on.size() - 1;
                     coll::all_to_all(f.on, std::span{f.rows}.first(count), f.first(count));
                   },
                   [](fixture& f) { coll::all_to_all(f.on, f.rows, f.out); }});
  return all;
}

void expect_untouched(const fixture& f) {
  for (const float element : f.out)
    if (element != -7.0F) test::fail("a refused call wrote its output");
}

void check_still_works(team& on) {
  std::vector<std::int32_t> data(3, 1);
  coll::all_reduce(on, data, coll::sum{});
  test::expect_equal(data[2], static_cast<std::int32_t>(on.size()), "sum after a refusal");
}

}  // namespace

#define PEERBUS_TEST_GROUPS test::direct_threads, test::staged_threads

TEST_CASE_TEMPLATE("bad arguments on one rank are refused on all", Group, PEERBUS_TEST_GROUPS) {
  for (const std::size_t n : {1U, 2U, 3U, 5U}) {
    const int worst_status = Group::run(n, [n](auto& comm) {
      team on{comm};
      const rank_id culprit{n - 1};
      for (const bad_call& call : bad_calls(n)) {
        fixture f{on};
        if (on.rank() == culprit)
          test::expect_error(errc::invalid_argument, {"was given", call.wrong},
                             [&] { call.bad(f); });
        else
          test::expect_error(
              errc::refused,
              {"did not happen: rank " + std::to_string(n - 1) + " was given", call.wrong},
              [&] { call.good(f); });
        expect_untouched(f);
        check_still_works(on);
      }
    });
    CHECK(worst_status == 0);
  }
}

TEST_CASE_TEMPLATE("elements that do not fit into a slice", Group, PEERBUS_TEST_GROUPS) {
  struct large {
    std::array<float, 512> elements{};
  };
  const auto first = [](const large& a, const large&) noexcept { return a; };
  const int worst_status = Group::run(2, [&](auto& comm) {
    team on{comm, {.scratch_bytes = 1024}};
    std::vector<large> data(1);
    test::expect_error(errc::invalid_argument, {"elements of 2048 bytes, expected at most"},
                       [&] { coll::all_reduce(on, data, first); });
    coll::broadcast(on, data, rank_id{1});
    check_still_works(on);
  });
  CHECK(worst_status == 0);
}

TEST_CASE_TEMPLATE("calls that differ are named on all ranks", Group, PEERBUS_TEST_GROUPS) {
  struct difference {
    std::string_view first;
    std::string_view last;
    std::function<void(fixture&)> call_of_first;
    std::function<void(fixture&)> call_of_last;
  };
  const std::vector<difference> differences{
      {"all_gather of 4 x f32", "all_reduce of 4 x f32 by sum",
       [](fixture& f) { coll::all_gather(f.on, f.four, f.out); },
       [](fixture& f) { coll::all_reduce(f.on, f.four, f.first(4), coll::sum{}); }},
      {"all_gather of 4 x f32", "all_gather of 2 x f32",
       [](fixture& f) { coll::all_gather(f.on, f.four, f.out); },
       [](fixture& f) {
         coll::all_gather(f.on, std::span{f.four}.first(2), f.first(2 * f.on.size()));
       }},
      {"by sum", "by max",
       [](fixture& f) { coll::all_reduce(f.on, f.four, f.first(4), coll::sum{}); },
       [](fixture& f) { coll::all_reduce(f.on, f.four, f.first(4), coll::maximum{}); }},
      {"x f32", "x 4 bytes", [](fixture& f) { coll::broadcast(f.on, f.first(4), rank_id{0}); },
       [](fixture& f) {
         struct other {
           float x;
         };
         std::vector<other> data(4);
         coll::broadcast(f.on, data, rank_id{0});
       }},
      {"with root 0", "with root 1",
       [](fixture& f) { coll::broadcast(f.on, f.first(4), rank_id{0}); },
       [](fixture& f) { coll::broadcast(f.on, f.first(4), rank_id{1}); }},
      {"all_to_all of 4 x f32", "reduce_scatter of 4 x f32 by sum",
       [](fixture& f) { coll::all_to_all(f.on, f.rows, f.out); },
       [](fixture& f) { coll::reduce_scatter(f.on, f.rows, f.first(4), coll::sum{}); }}};
  for (const std::size_t n : {2U, 3U, 5U}) {
    const int worst_status = Group::run(n, [&](auto& comm) {
      team on{comm, {.one_shot_bytes = 8}};
      const rank_id last{n - 1};
      for (const difference& calls : differences) {
        fixture f{on};
        test::expect_error(
            errc::mismatch,
            {"did not happen: rank 0 called", calls.first,
             "rank " + std::to_string(n - 1) + " called", calls.last},
            [&] { (on.rank() == last ? calls.call_of_last : calls.call_of_first)(f); });
        expect_untouched(f);
        check_still_works(on);
      }
    });
    CHECK(worst_status == 0);
  }
}

TEST_CASE_TEMPLATE("options that no team can have", Group, PEERBUS_TEST_GROUPS) {
  for (const std::size_t n : {2U, 5U}) {
    const int worst_status = Group::run(n, [n](auto& comm) {
      test::expect_error(errc::invalid_argument, {"scratch_bytes is 100", "expected at least 64"},
                         [&] { const team on{comm, {.scratch_bytes = 100}}; });
      const bool is_last = comm.rank().index() == n - 1;
      test::expect_error(errc::mismatch, {"one_shot_bytes", "1", "2"},
                         [&] { const team on{comm, {.one_shot_bytes = is_last ? 1U : 2U}}; });
      team on{comm};
      check_still_works(on);
    });
    CHECK(worst_status == 0);
  }
}

TEST_CASE_TEMPLATE("a rank that does not come is named at the deadline", Group,
                   PEERBUS_TEST_GROUPS) {
  const int worst_status = Group::run(3, [](auto& comm) {
    team on{comm};
    check_still_works(on);
    std::vector<float> data(10);
    if (comm.rank() != rank_id{1}) {
      test::expect_error(
          errc::timed_out,
          {"all_reduce (collective call 2)", "waited for rank 1 (round 1, expected 2)"}, [&] {
            coll::all_reduce(on, data, coll::sum{},
                             {.until = peerbus::deadline::after(std::chrono::milliseconds{50})});
          });
      test::expect_error(errc::poisoned, {"waited for rank 1"},
                         [&] { coll::broadcast(on, data, rank_id{0}); });
    }
    peerbus::agree(comm.bus().boot(), "the end", {}, comm.default_deadline());
  });
  CHECK(worst_status == 0);
}

#undef PEERBUS_TEST_GROUPS

}  // namespace refusals_test
