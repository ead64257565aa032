// SPDX-License-Identifier: MIT
// ctest: tsan timeout=300
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/collective/algorithm.hpp>
#include <peerbus/collective/all_gather.hpp>
#include <peerbus/collective/all_gather_coded.hpp>
#include <peerbus/collective/all_gather_v.hpp>
#include <peerbus/collective/all_reduce.hpp>
#include <peerbus/collective/all_reduce_add.hpp>
#include <peerbus/collective/all_to_all.hpp>
#include <peerbus/collective/all_to_all_v.hpp>
#include <peerbus/collective/broadcast.hpp>
#include <peerbus/collective/channels.hpp>
#include <peerbus/collective/gather.hpp>
#include <peerbus/collective/gather_v.hpp>
#include <peerbus/collective/part_layout.hpp>
#include <peerbus/collective/pending.hpp>
#include <peerbus/collective/pending_messages.hpp>
#include <peerbus/collective/reduce.hpp>
#include <peerbus/collective/reduce_scatter.hpp>
#include <peerbus/collective/reduce_scatter_v.hpp>
#include <peerbus/collective/reduction.hpp>
#include <peerbus/collective/scatter.hpp>
#include <peerbus/collective/scatter_v.hpp>
#include <peerbus/collective/send_recv.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/collective/transfer.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/cost_table.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/transport/loopback.hpp>

#include "collective/messages.hpp"
#include "support/groups.hpp"
#include "support/held_bootstrap.hpp"
#include "support/indirect.hpp"
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
  std::string wrong;
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

/// Bad calls of fused operations. Tokens are 2 of 4 elements.
std::vector<bad_call> bad_fusions(std::size_t n) {
  using codec = peerbus::codec::int8_per_token;
  const auto gather = [](fixture& f, std::size_t hidden, std::size_t tokens_out,
                         std::size_t elements = 8) {
    const std::vector<peerbus::bf16> own(elements);
    std::vector<float> out(tokens_out * hidden * f.on.size());
    coll::all_gather_coded(f.on, codec{}, hidden, own, out);
  };
  const auto good_gather = [gather](fixture& f) { gather(f, 4, 2); };
  const auto good_add = [](fixture& f) { coll::all_reduce_add(f.on, f.four, f.four, f.first(4)); };
  // Without tokens, so that no other size is wrong. Multiplied by the sizes of elements, these
  // overflow.
  const auto gather_none = [](fixture& f, std::size_t hidden) {
    coll::all_gather_coded(f.on, peerbus::codec::bf16{}, hidden, std::vector<peerbus::bf16>{},
                           std::vector<peerbus::bf16>{});
  };
  const auto good_none = [gather_none](fixture& f) { gather_none(f, 4); };
  return {{"hidden 0, expected a positive multiple of 1", [gather](fixture& f) { gather(f, 0, 2); },
           good_gather},
          {"hidden 18446744073709551615, expected at most 4294967295",
           [gather_none](fixture& f) { gather_none(f, ~std::size_t{0}); }, good_none},
          {"hidden 9223372036854775808, expected at most 4294967295",
           [gather_none](fixture& f) { gather_none(f, std::size_t{1} << 63U); }, good_none},
          {"hidden 4294967300, expected at most 4294967295",
           [gather_none](fixture& f) { gather_none(f, (std::size_t{1} << 32U) + 4); }, good_none},
          {"tokens of 9 elements, expected a multiple of hidden, 4",
           [gather](fixture& f) { gather(f, 4, 2, 9); }, good_gather},
          {"expected " + std::to_string(n) + " ranks x 2 tokens x 16 bytes",
           [gather](fixture& f) { gather(f, 4, 1); }, good_gather},
          {"ranges that overlap",
           [n](fixture& f) {
             std::vector<peerbus::bf16> out(8 * n + 1);
             const std::span<peerbus::bf16> all{out};
             coll::all_gather_coded(f.on, codec{}, 4, all.last(8), all.first(8 * n));
           },
           good_gather},
          {"expected at most",
           [](fixture& f) {
             const std::vector<peerbus::bf16> own(std::size_t{1} << 20U);
             std::vector<float> out(own.size() * f.on.size());
             coll::all_gather_coded(f.on, codec{}, own.size(), own, out);
           },
           good_gather},
          {"a residual of 3 elements, expected 4",
           [](fixture& f) {
             coll::all_reduce_add(f.on, f.four, std::span{f.rows}.first(3), f.first(4));
           },
           good_add},
          {"a residual that is null but 4 elements long",
           [](fixture& f) { coll::all_reduce_add(f.on, f.four, f.null, f.first(4)); }, good_add},
          {"a residual that overlaps another operand in part",
           [](fixture& f) {
             std::vector<float> both(5);
             coll::all_reduce_add(f.on, f.four, std::span{both}.first(4), std::span{both}.last(4));
           },
           good_add}};
}

/// Bad parts of the variable forms. Good ones have 4 elements for each rank.
std::vector<bad_call> bad_parts(std::size_t n) {
  using counts = std::vector<std::uint64_t>;
  const auto gather = [](fixture& f, const counts& sizes, const counts& places) {
    coll::all_gather_v(f.on, f.four, f.out, {sizes, places});
  };
  const auto exchange = [](fixture& f, const coll::part_layout& sent) {
    const counts sizes(f.on.size(), 4);
    coll::all_to_all_v(f.on, f.rows, sent, f.out, {sizes});
  };
  const auto good_gather = [gather, n](fixture& f) { gather(f, counts(n, 4), {}); };
  const auto good_exchange = [exchange, n](fixture& f) {
    const counts sizes(n, 4);
    exchange(f, {sizes});
  };
  std::vector<bad_call> all{
      {"counts of its output, expected one for each of",
       [gather, n](fixture& f) { gather(f, counts(n + 1, 4), {}); }, good_gather},
      {"displacements of its output, expected none or one for each of",
       [gather, n](fixture& f) { gather(f, counts(n, 4), counts(n + 1)); }, good_gather},
      {"elements, whose part of rank 0 has 18446744073709551615 elements from element 0 on",
       [gather, n](fixture& f) { gather(f, counts(n, ~std::uint64_t{0}), {}); }, good_gather},
      {"elements, whose part of rank 0 has 4 elements from element 18446744073709551614 on",
       [gather, n](fixture& f) { gather(f, counts(n, 4), counts(n, ~std::uint64_t{1})); },
       good_gather},
      {"whose part of rank 0 has 4611686018427387905 elements",  // x 4 bytes is 4 in 64 bits
       [exchange, n](fixture& f) {
         const counts sizes(n, (std::uint64_t{1} << 62U) + 1);
         exchange(f, {sizes});
       },
       good_exchange},
      {"an input of 4 elements, expected counts[" + std::to_string(n - 1) + "], which is 3",
       [gather, n](fixture& f) {
         counts sizes(n, 4);
         sizes[n - 1] = 3;
         gather(f, sizes, {});
       },
       good_gather},
      {"an output that is null but 4 elements long",
       [n](fixture& f) {
         const counts sizes(n, 4);
         coll::reduce_scatter_v(f.on, f.rows, {sizes}, f.null, coll::sum{});
       },
       [n](fixture& f) {
         const counts sizes(n, 4);
         coll::reduce_scatter_v(f.on, f.rows, {sizes}, f.first(4), coll::sum{});
       }},
      {"root rank 64, expected a rank below",
       [](fixture& f) { coll::gather_v(f.on, f.four, f.out, {}, rank_id{64}); },
       [n](fixture& f) {
         const counts sizes(n, 4);
         coll::gather_v(f.on, f.four, f.out, {sizes}, rank_id{0});
       }},
      {"whose part of rank 0 has 5 elements from element",
       [n](fixture& f) {
         const counts sizes(n, 5);
         const counts places(n, 4 * n - 1);
         coll::scatter_v(f.on, f.rows, {sizes, places}, f.first(4), rank_id{n - 1});
       },
       [n](fixture& f) { coll::scatter_v(f.on, f.rows, {}, f.first(4), rank_id{n - 1}); }}};
  if (n > 1)
    all.push_back({"an input whose parts of rank 0 and rank " + std::to_string(n - 1) +
                       " overlap: 4 from element 0 on, and 4 from element 3 on",
                   [n](fixture& f) {
                     const counts sizes(n, 4);
                     counts places(n);
                     for (std::size_t r = 0; r < n; ++r) places[r] = 4 * r;
                     places[n - 1] = 3;
                     coll::reduce_scatter_v(f.on, f.rows, {sizes, places},
                                            std::span{f.rows}.subspan(3, 4), coll::sum{});
                   },
                   [n](fixture& f) {
                     const counts sizes(n, 4);
                     coll::reduce_scatter_v(f.on, f.rows, {sizes}, f.first(4), coll::sum{});
                   }});
  if (n > 1)
    all.push_back({"an output whose parts of rank 0 and rank " + std::to_string(n - 1) +
                       " overlap: 4 from element 4 on, and 4 from element 1 on",
                   [gather, n](fixture& f) {
                     counts places(n, 4);
                     for (std::size_t r = 1; r + 1 < n; ++r) places[r] = 4 * (r + 1);
                     places[n - 1] = 1;
                     gather(f, counts(n, 4), places);
                   },
                   good_gather});
  return all;
}

/// A bad first half on one rank and the good one of its peers.
struct bad_half {
  std::string wrong;
  std::function<coll::pending(fixture&)> bad;
  std::function<coll::pending(fixture&)> good;
};

std::vector<bad_half> bad_halves(std::size_t n) {
  const rank_id last{n - 1};
  std::vector<bad_half> all{
      {"an output of 3 elements, expected",
       [](fixture& f) { return coll::start_all_gather(f.on, f.four, f.first(3)); },
       [](fixture& f) { return coll::start_all_gather(f.on, f.four, f.out); }},
      {"an output that is null but 4 elements long",
       [](fixture& f) { return coll::start_all_reduce(f.on, f.four, f.null, coll::sum{}); },
       [](fixture& f) { return coll::start_all_reduce(f.on, f.four, f.first(4), coll::sum{}); }},
      {"root rank 64, expected a rank below",
       [](fixture& f) { return coll::start_broadcast(f.on, f.first(4), rank_id{64}); },
       [](fixture& f) { return coll::start_broadcast(f.on, f.first(4), rank_id{0}); }},
      {"an input ",
       [](fixture& f) { return coll::start_reduce_scatter(f.on, f.null, f.first(4), coll::sum{}); },
       [](fixture& f) {
         return coll::start_reduce_scatter(f.on, f.rows, f.first(4), coll::sum{});
       }},
      {"an input ",
       [last](fixture& f) { return coll::start_scatter(f.on, f.null, f.first(4), last); },
       [last](fixture& f) { return coll::start_scatter(f.on, f.rows, f.first(4), last); }},
      {"an output ", [last](fixture& f) { return coll::start_gather(f.on, f.four, f.null, last); },
       [last](fixture& f) { return coll::start_gather(f.on, f.four, f.out, last); }},
      {"an output that is null but 4 elements long",
       [last](fixture& f) { return coll::start_reduce(f.on, f.four, f.null, coll::sum{}, last); },
       [last](fixture& f) {
         return coll::start_reduce(f.on, f.four, f.first(4), coll::sum{}, last);
       }},
      {"an output of 3 elements, expected",
       [](fixture& f) { return coll::start_all_to_all(f.on, f.rows, f.first(3)); },
       [](fixture& f) { return coll::start_all_to_all(f.on, f.rows, f.out); }},
      {"a residual that is null but 4 elements long",
       [](fixture& f) { return coll::start_all_reduce_add(f.on, f.four, f.null, f.first(4)); },
       [](fixture& f) { return coll::start_all_reduce_add(f.on, f.four, f.four, f.first(4)); }}};
  return all;
}

/// A bootstrap that counts ranks and cores of its host so that all ranks but rank 0 share cores.
class loaded_host final : public test::held_bootstrap {
 public:
  explicit loaded_host(peerbus::bootstrap& held)
      : held_bootstrap{held, held.rank().index() + 1, 1} {}
};

/// A size of a group, and the algorithm of its team.
struct team_case {
  std::size_t ranks;
  coll::algorithm by;
};
/// Sizes, and algorithms that compare calls in another way than the usual ones.
constexpr team_case team_cases[]{{1, coll::algorithm::automatic}, {2, coll::algorithm::automatic},
                                 {3, coll::algorithm::automatic}, {5, coll::algorithm::automatic},
                                 {2, coll::algorithm::doubling},  {3, coll::algorithm::doubling},
                                 {5, coll::algorithm::doubling},  {8, coll::algorithm::doubling},
                                 {3, coll::algorithm::ring},      {5, coll::algorithm::ring}};

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
  for (const team_case& each : team_cases) {
    const std::size_t n = each.ranks;
    CAPTURE(name_of(each.by));
    const int worst_status = Group::run(n, [n, &each](auto& comm) {
      team on{comm, {.algorithm = each.by}};
      const rank_id culprit{n - 1};
      std::vector<bad_call> calls = bad_calls(n);
      std::ranges::move(bad_parts(n), std::back_inserter(calls));
      std::ranges::move(bad_fusions(n), std::back_inserter(calls));
      for (const bad_call& call : calls) {
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
    team on{comm, {.scratch_bytes = 1280}};
    std::vector<large> data(1);
    test::expect_error(errc::invalid_argument, {"elements of 2048 bytes, expected at most"},
                       [&] { coll::all_reduce(on, data, first); });
    coll::broadcast(on, data, rank_id{1});
    check_still_works(on);
  });
  CHECK(worst_status == 0);
}

TEST_CASE_TEMPLATE("elements of 64 KiB are reduced", Group, PEERBUS_TEST_GROUPS) {
  struct large {
    std::array<std::uint32_t, 16'384> elements{};
  };
  const auto add = [](const large& a, const large& b) noexcept {
    large both;
    for (std::size_t i = 0; i < both.elements.size(); ++i)
      both.elements[i] = a.elements[i] + b.elements[i];
    return both;
  };
  const int worst_status = Group::run(3, [&](auto& comm) {
    team on{comm};
    std::vector<large> data(5);
    for (std::size_t i = 0; i < data.size(); ++i)
      data[i].elements.fill(static_cast<std::uint32_t>(i + on.rank().index()));
    coll::all_reduce(on, data, add);
    for (std::size_t i = 0; i < data.size(); ++i)
      for (const std::uint32_t element : data[i].elements)
        test::expect_equal(element, 3 * i + 3, "sum");
  });
  CHECK(worst_status == 0);
}

TEST_CASE_TEMPLATE("rows that fill a slice are gathered", Group, PEERBUS_TEST_GROUPS) {
  const int worst_status = Group::run(2, [](auto& comm) {
    team on{comm};
    const std::size_t n = on.size();
    // As f32, a row takes twice as much as as bf16, which is more than a page where pages are read.
    const std::size_t hidden = on.map().slice_bytes(1) / sizeof(peerbus::bf16);
    const std::vector<peerbus::bf16> own(hidden,
                                         peerbus::bf16{static_cast<float>(on.rank().index() + 1)});
    const auto gather = [&](const auto& codec, auto& out) {
      coll::all_gather_coded(on, codec, hidden, own, out);
      for (std::size_t r = 0; r < n; ++r)
        test::expect_equal(static_cast<float>(out[(r + 1) * hidden - 1]), static_cast<float>(r + 1),
                           "the last element of a row");
    };
    std::vector<peerbus::bf16> as_bf16(n * hidden);
    std::vector<float> as_float(n * hidden);
    gather(peerbus::codec::bf16{}, as_bf16);
    gather(peerbus::codec::bf16{}, as_float);
    using int8 = peerbus::codec::int8_per_token;
    gather(int8{}, as_float);
    // This one is decoded to f32 first, in a page.
    if (hidden * sizeof(float) > on.map().page_bytes)
      test::expect_error(errc::invalid_argument, {"bytes when decoded, expected at most"},
                         [&] { gather(int8{}, as_bf16); });
    else
      gather(int8{}, as_bf16);
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
  const auto gather_coded = [](fixture& f, std::size_t hidden) {
    std::vector<float> out(2 * hidden * f.on.size());
    const std::vector<peerbus::bf16> own(2 * hidden);
    coll::all_gather_coded(f.on, peerbus::codec::int8_per_token{}, hidden, own, out);
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
      {"all_reduce of 4 x f32 by sum,", "all_reduce of 4 x f32 by sum+add",
       [](fixture& f) { coll::all_reduce(f.on, f.four, f.first(4), coll::sum{}); },
       [](fixture& f) { coll::all_reduce_add(f.on, f.four, f.four, f.first(4)); }},
      {"all_gather_coded of 2 x int8_per_token with hidden 16,", "all_gather_coded of 2 x bf16",
       [&](fixture& f) { gather_coded(f, 16); },
       [](fixture& f) {
         std::vector<float> out(32 * f.on.size());
         const std::vector<peerbus::bf16> own(32);
         coll::all_gather_coded(f.on, peerbus::codec::bf16{}, 16, own, out);
       }},
      {"all_gather_coded of 2 x int8_per_token with hidden 16,",
       "all_gather_coded of 2 x int8_per_token with hidden 15",
       // Rows of 15 and of 16 elements take as many bytes of a slice.
       [&](fixture& f) { gather_coded(f, 16); }, [&](fixture& f) { gather_coded(f, 15); }},
      {"all_to_all of 4 x f32", "reduce_scatter of 4 x f32 by sum",
       [](fixture& f) { coll::all_to_all(f.on, f.rows, f.out); },
       [](fixture& f) { coll::reduce_scatter(f.on, f.rows, f.first(4), coll::sum{}); }}};
  for (const team_case& each : team_cases) {
    const std::size_t n = each.ranks;
    if (n == 1) continue;
    CAPTURE(name_of(each.by));
    const int worst_status = Group::run(n, [&](auto& comm) {
      team on{comm, {.one_shot_bytes = 8, .algorithm = each.by}};
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

TEST_CASE_TEMPLATE("counts that differ between ranks are named on all ranks", Group,
                   PEERBUS_TEST_GROUPS) {
  for (const std::size_t n : {2U, 3U, 5U}) {
    const int worst_status = Group::run(n, [n](auto& comm) {
      team on{comm, {.scratch_bytes = 4096}};
      const rank_id last{n - 1};
      std::vector<std::uint64_t> counts(n, 4);
      const auto expect_mismatch = [&](std::string_view text, auto call) {
        fixture f{on};
        test::expect_error(errc::mismatch, {"did not happen: ", text}, [&] { call(f); });
        expect_untouched(f);
        check_still_works(on);
      };
      // The first rank believes that the last one sends less.
      if (on.rank() == rank_id{0}) counts[n - 1] = 3;
      expect_mismatch(
          "rank " + std::to_string(n - 1) + " sends 4 elements to rank 0, which expects 3",
          [&](fixture& f) { coll::all_gather_v(on, f.four, f.out, {counts}); });
      expect_mismatch(
          "rank " + std::to_string(n - 1) + " sends 4 elements to rank 0, which expects 3",
          [&](fixture& f) {
            const std::vector<std::uint64_t> sent(n, 4);
            coll::all_to_all_v(on, f.rows, {sent}, f.out, {counts});
          });
      expect_mismatch(
          "rank " + std::to_string(n - 1) + " sends 4 elements to rank 0, which expects 3",
          [&](fixture& f) { coll::gather_v(on, f.four, f.out, {counts}, rank_id{0}); });
      expect_mismatch(
          "rank 0 sends 3 elements to rank " + std::to_string(n - 1) + ", which expects 4",
          [&](fixture& f) { coll::scatter_v(on, f.rows, {counts}, f.first(4), rank_id{0}); });
      expect_mismatch(
          "rank 0 sends 3 elements to rank " + std::to_string(n - 1) + ", which expects 4",
          [&](fixture& f) {
            coll::reduce_scatter_v(on, f.rows, {counts}, f.first(4), coll::sum{});
          });
      expect_mismatch("rank 0 called all_gather_v of f32", [&](fixture& f) {
        if (on.rank() == last)
          coll::all_gather(on, f.four, f.out);
        else
          coll::all_gather_v(on, f.four, f.out, {std::vector<std::uint64_t>(n, 4)});
      });
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
      peerbus::cost_table costs;
      if (is_last) costs.set("collective.puts.round_us", 7);
      test::expect_error(errc::mismatch, {"hash of costs", "is 0 on rank 0 but "},
                         [&] { const team on{comm, {.costs = costs}}; });
      test::expect_error(errc::mismatch, {"algorithm", "doubling", "automatic"}, [&] {
        using enum coll::algorithm;
        const team on{comm, {.algorithm = is_last ? doubling : automatic}};
      });
      team on{comm};
      check_still_works(on);
    });
    CHECK(worst_status == 0);
  }
}

TEST_CASE("hosts that are loaded differently have teams with equal options") {
  using indirect_loopback = test::indirect<peerbus::loopback>;
  const int worst_status =
      test::threads_over<indirect_loopback>::start(3, [](peerbus::bootstrap& boot) {
        loaded_host host{boot};
        peerbus::communicator<indirect_loopback> comm{indirect_loopback{host}};
        team on{comm};
        check_still_works(on);
      });
  CHECK(worst_status == 0);
}

TEST_CASE_TEMPLATE("a rank that does not come is named at the deadline", Group,
                   PEERBUS_TEST_GROUPS) {
  for (const coll::algorithm by : {coll::algorithm::automatic, coll::algorithm::doubling}) {
    const int worst_status = Group::run(3, [by](auto& comm) {
      team on{comm, {.algorithm = by}};
      check_still_works(on);
      std::vector<float> data(10);
      if (comm.rank() != rank_id{1}) {
        const bool has_steps =
            on.algorithm_of(coll::choice_of::all_reduce, 40) != coll::algorithm::one_shot;
        test::expect_error(
            errc::timed_out,
            {"all_reduce (collective call 2)", ": waited ", " for rank 1 (",
             has_steps ? " of round 2; " : "round 1, expected 2; "},
            [&] {
              coll::all_reduce(on, data, coll::sum{},
                               {.until = peerbus::deadline::after(std::chrono::milliseconds{50})});
            });
        test::expect_error(errc::poisoned, {" for rank 1 ("},
                           [&] { coll::broadcast(on, data, rank_id{0}); });
      }
      peerbus::agree(comm.bus().boot(), "the end", {}, comm.default_deadline());
    });
    CHECK(worst_status == 0);
  }
}

TEST_CASE_TEMPLATE("bad arguments of a first half are refused by the second ones", Group,
                   PEERBUS_TEST_GROUPS) {
  for (const team_case& each : team_cases) {
    const std::size_t n = each.ranks;
    CAPTURE(name_of(each.by));
    const int worst_status = Group::run(n, [n, &each](auto& comm) {
      team on{comm, {.algorithm = each.by}};
      for (const bad_half& call : bad_halves(n)) {
        fixture f{on};
        if (on.rank().index() == n - 1) {
          coll::pending half = call.bad(f);
          test::expect_error(errc::invalid_argument, {"was given", call.wrong},
                             [&] { half.finish(); });
        } else {
          coll::pending half = call.good(f);
          test::expect_error(
              errc::refused,
              {"did not happen: rank " + std::to_string(n - 1) + " was given", call.wrong},
              [&] { half.finish(); });
        }
        expect_untouched(f);
        check_still_works(on);
      }
    });
    CHECK(worst_status == 0);
  }
}

TEST_CASE_TEMPLATE("a call before the second half is refused on its rank alone", Group,
                   PEERBUS_TEST_GROUPS) {
  const int worst_status = Group::run(3, [](auto& comm) {
    team on{comm};
    for (int round = 0; round < 5; ++round) {
      fixture f{on};
      coll::pending half = coll::start_all_gather(on, f.four, f.out);
      const std::string open = " was called while all_gather (collective call " +
                               std::to_string(2 * round + 1) + ") is not finished";
      if (on.rank().index() == static_cast<std::size_t>(round) % 3) {
        test::expect_error(errc::invalid_argument, {"all_reduce" + open},
                           [&] { coll::all_reduce(on, f.rows, coll::sum{}); });
        test::expect_error(errc::invalid_argument, {"all_gather" + open}, [&] {
          const coll::pending second = coll::start_all_gather(on, f.four, f.out);
        });
        test::expect_error(errc::invalid_argument, {"all_gather_v" + open}, [&] {
          const std::vector<std::uint64_t> counts(3, 4);
          coll::all_gather_v(on, f.four, f.out, {counts});
        });
      }
      half.finish();
      test::expect(f.out == std::vector<float>(12, 1.0F), "the output of the first operation");
      test::expect_error(errc::invalid_argument, {"a handle without a collective operation"},
                         [&] { half.finish(); });
      check_still_works(on);
    }
  });
  CHECK(worst_status == 0);
}

TEST_CASE_TEMPLATE("halves of calls that differ are named on all ranks", Group,
                   PEERBUS_TEST_GROUPS) {
  const int worst_status = Group::run(3, [](auto& comm) {
    team on{comm};
    fixture f{on};
    coll::pending half = on.rank() == rank_id{1}
                             ? coll::start_all_reduce(on, f.four, f.first(4), coll::sum{})
                             : coll::start_all_gather(on, f.four, f.out);
    test::expect_error(errc::mismatch,
                       {"rank 0 called all_gather of 4 x f32, rank 1 called all_reduce"},
                       [&] { half.finish(); });
    expect_untouched(f);
    check_still_works(on);
  });
  CHECK(worst_status == 0);
}

TEST_CASE_TEMPLATE("a second half that waits for a rank ends at its deadline", Group,
                   PEERBUS_TEST_GROUPS) {
  const int worst_status = Group::run(3, [](auto& comm) {
    team on{comm};
    std::vector<float> data(10);
    if (comm.rank() != rank_id{1}) {
      coll::pending half = coll::start_all_reduce(on, data, coll::sum{});
      test::expect_error(
          errc::timed_out, {"all_reduce (collective call 1)", " for rank 1 (round 0, expected 1; "},
          [&] { half.finish(peerbus::deadline::after(std::chrono::milliseconds{50})); });
      test::expect(!half.has_operation(), "an empty handle");
      test::expect_error(errc::poisoned, {" for rank 1 ("},
                         [&] { half = coll::start_all_reduce(on, data, coll::sum{}); });
    }
    peerbus::agree(comm.bus().boot(), "the end", {}, comm.default_deadline());
  });
  CHECK(worst_status == 0);
}

TEST_CASE_TEMPLATE("a handle that is destroyed gives its operation up", Group,
                   PEERBUS_TEST_GROUPS) {
  const int worst_status = Group::run(3, [](auto& comm) {
    team on{comm};
    std::vector<float> all(30, -7.0F);
    std::vector<float> data(10, 1.0F);
    if (comm.rank() == rank_id{1}) {
      try {
        const coll::pending half = coll::start_all_gather(on, data, all);
        throw std::runtime_error{"in the computation"};
      } catch (const std::runtime_error&) {
      }
      test::expect(all == std::vector<float>(30, -7.0F), "an output that is not written");
      test::expect_error(errc::poisoned,
                         {"all_gather (collective call 1) was started and never finished"},
                         [&] { coll::all_reduce(on, data, coll::sum{}); });
    } else {
      // Its slice is there. Nothing else is.
      coll::start_all_gather(on, data, all).finish();
      test::expect(all == std::vector<float>(30, 1.0F), "the output of the peers");
      test::expect_error(errc::timed_out, {" for rank 1 (round 1, expected 2; "}, [&] {
        coll::all_reduce(on, data, coll::sum{},
                         {.until = peerbus::deadline::after(std::chrono::milliseconds{50})});
      });
    }
    peerbus::agree(comm.bus().boot(), "the end", {}, comm.default_deadline());
  });
  CHECK(worst_status == 0);
}

TEST_CASE_TEMPLATE("messages that both ends see differently", Group, PEERBUS_TEST_GROUPS) {
  for (const std::size_t n : {2U, 3U})
    collective_suite::on_channels<Group>(n, collective_suite::check_message_mismatch,
                                         collective_suite::small_slots);
}

TEST_CASE_TEMPLATE("bad messages are refused on the rank that gives them", Group,
                   PEERBUS_TEST_GROUPS) {
  for (const std::size_t n : {1U, 3U})
    collective_suite::on_channels<Group>(n, collective_suite::check_bad_messages);
}

TEST_CASE_TEMPLATE("a first half moves messages, and is given up with its handle", Group,
                   PEERBUS_TEST_GROUPS) {
  const int worst_status = Group::run(2, [](auto& comm) {
    coll::channels on{comm};
    const std::vector<float> out(10, 1.0F);
    std::vector<float> in(10);
    const rank_id other{1 - comm.rank().index()};
    const std::vector<coll::transfer> both{coll::send_to(other, out), coll::recv_from(other, in)};
    const auto meet = [&] {
      peerbus::agree(comm.bus().boot(), "messages", {}, comm.default_deadline());
    };
    if (comm.rank() == rank_id{0}) {
      coll::pending_messages half = coll::start_batch_send_recv(on, both);
      meet();  // Rank 1 needs nothing of the second half.
      half.finish();
      test::expect(in == out, "the message of rank 1");
      meet();
      half = coll::start_send(on, out, other);
      half = {};
      test::expect_error(
          errc::poisoned,
          {"batch_send_recv (call 2 of the channels) was started and never finished"},
          [&] { coll::recv(on, in, other); });
    } else {
      coll::batch_send_recv(on, both);
      test::expect(in == out, "the message of rank 0");
      meet();
      meet();
      coll::pending_messages half = coll::start_recv(on, in, other);
      half.finish();
      half = coll::start_recv(on, in, other);
      test::expect_error(
          errc::timed_out, {"message 2 from rank 0 waited for it to be sent (0 of 40 bytes; "},
          [&] { half.finish(peerbus::deadline::after(std::chrono::milliseconds{50})); });
    }
    meet();
  });
  CHECK(worst_status == 0);
}

TEST_CASE_TEMPLATE("channels that do not fit, and ends that do not come", Group,
                   PEERBUS_TEST_GROUPS) {
  const int worst_status = Group::run(3, [](auto& comm) {
    test::expect_error(errc::invalid_argument, {"scratch_bytes is 100", "expected at least 64"},
                       [&] { const coll::channels on{comm, {.scratch_bytes = 100}}; });
    coll::channels on{comm};
    collective_suite::check_batch(on, 0, 2, 1);
    std::vector<float> data(10);
    std::vector<float> more(1);
    if (comm.rank() == rank_id{0}) {
      test::expect_error(errc::timed_out,
                         {"batch_send_recv (call 2 of the channels) failed in the middle",
                          "message 2 to rank 1 waited for it to be received (40 of 40 bytes; ",
                          "message 2 from rank 2 waited for it to be sent (0 of 4 bytes; "},
                         [&] {
                           coll::batch_send_recv(
                               on,
                               {coll::send_to(rank_id{1}, data), coll::recv_from(rank_id{2}, more)},
                               {.until = peerbus::deadline::after(std::chrono::milliseconds{50})});
                         });
      test::expect_error(errc::poisoned, {"message 2 to rank 1"},
                         [&] { coll::send(on, data, rank_id{2}); });
    }
    peerbus::agree(comm.bus().boot(), "the end", {}, comm.default_deadline());
  });
  CHECK(worst_status == 0);
}

#undef PEERBUS_TEST_GROUPS

}  // namespace refusals_test
