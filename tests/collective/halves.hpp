// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/collective.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>

#include "collective/suite.hpp"
#include "support/ranks.hpp"

/// Operations in halves against the oracles of the whole ones, beside ranks that call them whole.
namespace collective_suite {

using peerbus::collective::pending;

template <class Input>
concept starts_with = requires(team& on, Input&& input, std::vector<float>& out) {
  peerbus::collective::start_all_gather(on, std::forward<Input>(input), out);
};
static_assert(starts_with<std::vector<float>&> && starts_with<std::span<const float>> &&
              !starts_with<std::vector<float>>);

/// A reduction with a state, which the first half copies.
struct sum_from {
  std::array<float, 16> terms{};
  float operator()(float a, float b) const noexcept { return a + b + terms[0]; }
};
struct larger_sum : sum_from {
  float last = 0;
};
template <class Op>
concept starts_by = requires(team& on, std::vector<float>& data, Op op) {
  peerbus::collective::start_all_reduce(on, data, op);
};
static_assert(starts_by<sum_from> && !starts_by<larger_sum>);

/// Computes between halves, for longer on some ranks than on others, and in other memory.
inline void compute(std::uint64_t seed) {
  std::vector<std::uint64_t> memory(64);
  for (std::uint64_t i = 0; i < 500 * (mix(seed) % 4); ++i)
    memory[i % 64] = mix(memory[(i + 1) % 64] + i);
  test::expect(memory[0] != 1, "a number");
}

template <class T>
void check_halves_of(team& on, std::size_t count, std::uint64_t salt) {
  namespace coll = peerbus::collective;
  const std::size_t n = on.size();
  const std::size_t me = on.rank().index();
  const std::vector<T> mine = values<T>(me, count, salt);
  const std::vector<T> rows = values<T>(me, n * count, salt + 1);
  const rank_id root{salt % n};
  const bool is_root = on.rank() == root;
  std::vector<T> out;
  // The next output, of elements that no operation gives.
  const auto target = [&](std::size_t size) -> std::vector<T>& {
    out.assign(size, static_cast<T>(77.0F));
    return out;
  };
  const auto finish = [&](pending half, const std::vector<T>& expected, std::string_view what) {
    test::expect(half.has_operation(), what, " has a second half");
    const std::vector<T> before = out;
    compute(salt + me);
    expect_same<T>(before, out, what);  // No output is written between the halves.
    half.finish();
    test::expect(!half.has_operation(), what, " is finished");
    expect_same<T>(out, expected, what);
    compute(salt + me + 1);
  };

  const std::vector<T> of_all = gathered<T>(n, count, salt);
  finish(coll::start_all_gather(on, mine, target(n * count)), of_all, "all_gather");
  // Some ranks call the whole operation.
  target(n * count);
  if ((me + salt) % 2 == 0)
    finish(coll::start_all_gather(on, mine, out), of_all, "all_gather beside whole ones");
  else
    coll::all_gather(on, mine, out);
  expect_same<T>(out, of_all, "all_gather beside halves");

  finish(coll::start_all_to_all(on, rows, target(n * count)), transposed<T>(n, me, count, salt + 1),
         "all_to_all");
  out = rows;
  finish(coll::start_all_to_all(on, out, out), transposed<T>(n, me, count, salt + 1),
         "all_to_all in place");

  target(count);
  if (is_root) out = mine;
  finish(coll::start_broadcast(on, out, root), values<T>(root.index(), count, salt), "broadcast");
  finish(coll::start_gather(on, mine, target(is_root ? n * count : 0), root),
         is_root ? of_all : std::vector<T>{}, "gather");
  const std::vector<T> of_root = values<T>(root.index(), n * count, salt + 1);
  const auto part = std::span{of_root}.subspan(me * count, count);
  finish(coll::start_scatter(on, rows, target(count), root), {part.begin(), part.end()}, "scatter");

  std::vector<T> total(count);
  for (std::size_t i = 0; i < count; ++i) total[i] = reduced<T>(n, i, salt, coll::sum{});
  finish(coll::start_all_reduce(on, mine, target(count), coll::sum{}), total, "all_reduce");
  out = mine;
  finish(coll::start_all_reduce(on, out, coll::sum{}), total, "all_reduce in place");
  finish(coll::start_reduce(on, mine, target(count), coll::sum{}, root),
         is_root ? total : std::vector<T>(count, static_cast<T>(77.0F)), "reduce");
  for (std::size_t i = 0; i < count; ++i)
    total[i] = reduced<T>(n, me * count + i, salt + 1, coll::sum{});
  finish(coll::start_reduce_scatter(on, rows, target(count), coll::sum{}), total, "reduce_scatter");
  // The residual is what a rank more would contribute.
  for (std::size_t i = 0; i < count; ++i) total[i] = reduced<T>(n + 1, i, salt, coll::sum{});
  const std::vector<T> residual = values<T>(n, count, salt);
  finish(coll::start_all_reduce_add(on, mine, residual, target(count)), total, "all_reduce_add");
}

inline void check_halves(team& on) {
  namespace coll = peerbus::collective;
  std::uint64_t salt = 500;
  for (const std::size_t count : {0U, 5U, 257U}) {
    check_halves_of<float>(on, count, ++salt);
    check_halves_of<bf16>(on, count, ++salt);
  }
  // The callable is gone when the second half uses its copy.
  std::vector<float> data(100, 1.0F);
  std::optional<sum_from> op{sum_from{{0.5F}}};
  pending half = coll::start_all_reduce(on, data, *op);
  op->terms[0] = 100;
  op.reset();
  pending moved;
  moved = std::move(half);
  test::expect(!half.has_operation(), "a handle that was moved from");
  pending other{std::move(moved)};
  other.finish(peerbus::deadline::after(std::chrono::seconds{60}));
  const auto n = static_cast<float>(on.size());
  expect_same<float>(data, std::vector<float>(100, n + (n - 1) / 2), "a sum by a copy");
}

/// Halves by the algorithm that the options of the team name, of types whose sums do not depend on
/// the order, beside ranks that call whole operations.
inline void check_halves_by_algorithm(team& on) {
  namespace coll = peerbus::collective;
  using element = std::uint8_t;
  const std::size_t n = on.size();
  const std::size_t me = on.rank().index();
  std::uint64_t salt = 900;
  for (const std::size_t count : {0U, 1U, 65U, 257U, 4000U}) {
    ++salt;
    const bool is_in_halves = (me + salt) % 3 != 0;
    const std::vector<element> mine = values<element>(me, count, salt);
    std::vector<element> expected(count);
    for (std::size_t i = 0; i < count; ++i) expected[i] = reduced<element>(n, i, salt, coll::sum{});
    std::vector<element> total = mine;
    std::vector<element> all(n * count);
    if (is_in_halves) {
      pending half = coll::start_all_reduce(on, total, coll::sum{});
      compute(salt + me);
      expect_same<element>(total, mine, "the operand between halves");
      half.finish();
      half = coll::start_all_gather(on, mine, all);
      compute(salt + me + 1);
      half.finish();
    } else {
      coll::all_reduce(on, total, coll::sum{});
      coll::all_gather(on, mine, all);
    }
    expect_same<element>(total, expected, "all_reduce in halves");
    expect_same<element>(all, gathered<element>(n, count, salt), "all_gather in halves");
  }
}

/// Halves of two teams that enclose each other or overlap. Operations of one slice need nothing of
/// a peer after its first half, so the order differs between ranks.
inline void check_two_teams(team& one, team& two) {
  namespace coll = peerbus::collective;
  const std::size_t n = one.size();
  const std::size_t me = one.rank().index();
  for (std::uint64_t salt = 600; salt < 620; ++salt) {
    const std::vector<float> mine = values<float>(me, 150, salt);
    std::vector<float> all(n * 150);
    std::vector<float> total = values<float>(me, 90, salt);
    std::vector<float> expected(90);
    for (std::size_t i = 0; i < 90; ++i) expected[i] = reduced<float>(n, i, salt, coll::sum{});
    pending gather;
    pending reduce;
    if (mix(salt + me) % 2 == 0) gather = coll::start_all_gather(one, mine, all);
    reduce = coll::start_all_reduce(two, total, coll::sum{});
    compute(salt + me);
    if (!gather.has_operation()) gather = coll::start_all_gather(one, mine, all);
    if (mix(salt + me) % 3 == 0) {
      gather.finish();
      compute(salt + me + 7);
      reduce.finish();
    } else {
      reduce.finish();
      std::vector<float> more = values<float>(me, 20, salt);
      coll::broadcast(two, more, rank_id{salt % n});
      gather.finish();
    }
    // The others make their call of the second team now.
    if (mix(salt + me) % 3 == 0) {
      std::vector<float> more = values<float>(me, 20, salt);
      coll::broadcast(two, more, rank_id{salt % n});
    }
    expect_same<float>(all, gathered<float>(n, 150, salt), "all_gather of one team");
    expect_same<float>(total, expected, "all_reduce of another team");
  }
}

}  // namespace collective_suite
