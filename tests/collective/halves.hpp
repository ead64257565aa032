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

#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/collective.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>

#include "collective/parts.hpp"
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

  std::vector<T> total = all_reduced<T>(n, count, salt, coll::sum{});
  finish(coll::start_all_reduce(on, mine, target(count), coll::sum{}), total, "all_reduce");
  out = mine;
  finish(coll::start_all_reduce(on, out, coll::sum{}), total, "all_reduce in place");
  finish(coll::start_reduce(on, mine, target(count), coll::sum{}, root),
         is_root ? total : std::vector<T>(count, static_cast<T>(77.0F)), "reduce");
  total = all_reduced<T>(n, count, salt + 1, coll::sum{}, me * count);
  finish(coll::start_reduce_scatter(on, rows, target(count), coll::sum{}), total, "reduce_scatter");
  // The residual is what a rank more would contribute.
  total = all_reduced<T>(n + 1, count, salt, coll::sum{});
  const std::vector<T> residual = values<T>(n, count, salt);
  finish(coll::start_all_reduce_add(on, mine, residual, target(count)), total, "all_reduce_add");
}

/// Halves of the variable forms, against what their whole forms give. Some ranks call those.
template <class T>
void check_halves_of_parts(team& on, std::size_t most, std::uint64_t salt) {
  namespace coll = peerbus::collective;
  const std::size_t n = on.size();
  const std::size_t me = on.rank().index();
  const rank_id root{salt % n};
  const bool is_root = on.rank() == root;
  const T untouched = static_cast<T>(77.0F);
  std::vector<std::uint64_t> to_peers(n);
  std::vector<std::uint64_t> from_peers(n);
  std::vector<std::uint64_t> of_ranks(n);
  for (std::size_t r = 0; r < n; ++r) {
    to_peers[r] = sent(me, r, most, salt);
    from_peers[r] = sent(r, me, most, salt);
    of_ranks[r] = sent(r, n, most, salt);
  }
  const parted in{to_peers, false};
  const parted came{from_peers, true};
  const parted all{of_ranks, false};
  const std::vector<T> input = values<T>(me, in.elements, salt);
  const std::vector<T> rows = values<T>(me, all.elements, salt + 1);
  const std::vector<T> own = values<T>(me, of_ranks[me], salt + 2);

  // `whole(output)` does an operation, and `start(output)` its first half.
  const auto check = [&](std::size_t size, auto&& whole, auto&& start, std::string_view what) {
    std::vector<T> expected(size, untouched);
    whole(expected);
    std::vector<T> out(size, untouched);
    if ((me + salt) % 3 == 0) {
      whole(out);
    } else {
      pending half = start(out);
      compute(salt + me);
      expect_same<T>(out, std::vector<T>(size, untouched), what);
      // Another call must not change what the first half has noted of the parts.
      bool is_refused = false;
      try {
        coll::all_to_all_v(on, input, {}, expected, {});
      } catch (const peerbus::error& problem) {
        is_refused = problem.code() == peerbus::errc::invalid_argument;
      }
      test::expect(is_refused, what, " between its halves");
      half.finish();
    }
    expect_same<T>(out, expected, what);
  };
  check(
      came.elements,
      [&](auto& out) { coll::all_to_all_v(on, input, in.layout(), out, came.layout()); },
      [&](auto& out) {
        // The arrays of a layout are used by the first half only.
        const parted copy_in = in;
        const parted copy_came = came;
        return coll::start_all_to_all_v(on, input, copy_in.layout(), out, copy_came.layout());
      },
      "all_to_all_v");
  check(
      all.elements, [&](auto& out) { coll::all_gather_v(on, own, out, all.layout()); },
      [&](auto& out) { return coll::start_all_gather_v(on, own, out, all.layout()); },
      "all_gather_v");
  check(
      is_root ? all.elements : 0,
      [&](auto& out) { coll::gather_v(on, own, out, all.layout(), root); },
      [&](auto& out) { return coll::start_gather_v(on, own, out, all.layout(), root); },
      "gather_v");
  check(
      of_ranks[me], [&](auto& out) { coll::scatter_v(on, rows, all.layout(), out, root); },
      [&](auto& out) { return coll::start_scatter_v(on, rows, all.layout(), out, root); },
      "scatter_v");
  check(
      of_ranks[me],
      [&](auto& out) { coll::reduce_scatter_v(on, rows, all.layout(), out, coll::sum{}); },
      [&](auto& out) {
        return coll::start_reduce_scatter_v(on, rows, all.layout(), out, coll::sum{});
      },
      "reduce_scatter_v");
}

/// Halves of `all_gather_coded`, against what the whole one gives.
inline void check_coded_halves(team& on, std::size_t tokens, std::uint64_t salt) {
  namespace coll = peerbus::collective;
  using codec = peerbus::codec::int8_per_token;
  constexpr std::size_t hidden = 24;
  const std::size_t all = on.size() * tokens;
  const std::vector<bf16> own = values<bf16>(on.rank().index(), tokens * hidden, salt);
  std::vector<bf16> expected(all * hidden);
  coll::all_gather_coded(on, codec{}, hidden, own, expected);
  std::vector<bf16> out(all * hidden);
  pending half = coll::start_all_gather_coded(on, codec{}, hidden, own, out);
  compute(salt + on.rank().index());
  expect_same<bf16>(out, std::vector<bf16>(all * hidden), "all_gather_coded between halves");
  half.finish();
  expect_same<bf16>(out, expected, "all_gather_coded in halves");

  std::vector<std::byte> rows(all * codec::row_bytes(hidden));
  std::vector<std::byte> scales(all * codec::scale_bytes(hidden));
  std::vector<std::byte> row_out(rows.size());
  std::vector<std::byte> scale_out(scales.size());
  coll::all_gather_coded(on, codec{}, hidden, own, coll::coded_rows{rows, scales});
  half =
      coll::start_all_gather_coded(on, codec{}, hidden, own, coll::coded_rows{row_out, scale_out});
  compute(salt + on.rank().index());
  half.finish();
  expect_same<std::byte>(row_out, rows, "all_gather_coded in halves, rows");
  expect_same<std::byte>(scale_out, scales, "all_gather_coded in halves, scales");
}

inline void check_halves(team& on) {
  namespace coll = peerbus::collective;
  std::uint64_t salt = 500;
  for (const std::size_t count : {0U, 5U, 257U}) {
    check_halves_of<float>(on, count, ++salt);
    check_halves_of<bf16>(on, count, ++salt);
    check_halves_of_parts<float>(on, count, ++salt);
    check_coded_halves(on, count / 10, ++salt);
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
    std::vector<element> expected = all_reduced<element>(n, count, salt, coll::sum{});
    const std::vector<element> rows = values<element>(me, n * count, salt + 50);
    const rank_id root{salt % n};
    std::vector<element> total = mine;
    std::vector<element> all(n * count);
    std::vector<element> part(count);
    std::vector<element> data = on.rank() == root ? mine : std::vector<element>(count);
    if (is_in_halves) {
      pending half = coll::start_all_reduce(on, total, coll::sum{});
      compute(salt + me);
      expect_same<element>(total, mine, "the operand between halves");
      half.finish();
      half = coll::start_all_gather(on, mine, all);
      compute(salt + me + 1);
      half.finish();
      half = coll::start_reduce_scatter(on, rows, part, coll::sum{});
      compute(salt + me + 2);
      expect_same<element>(part, std::vector<element>(count), "the output between halves");
      half.finish();
      half = coll::start_broadcast(on, data, root);
      compute(salt + me + 3);
      half.finish();
    } else {
      coll::all_reduce(on, total, coll::sum{});
      coll::all_gather(on, mine, all);
      coll::reduce_scatter(on, rows, part, coll::sum{});
      coll::broadcast(on, data, root);
    }
    expect_same<element>(total, expected, "all_reduce in halves");
    expect_same<element>(all, gathered<element>(n, count, salt), "all_gather in halves");
    expected = all_reduced<element>(n, count, salt + 50, coll::sum{}, me * count);
    expect_same<element>(part, expected, "reduce_scatter in halves");
    expect_same<element>(data, values<element>(root.index(), count, salt), "broadcast in halves");
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
    const std::vector<float> expected = all_reduced<float>(n, 90, salt, coll::sum{});
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
