// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

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
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/rank.hpp>

#include "collective/values.hpp"
#include "support/ranks.hpp"

/// Every operation against a plain loop, bit by bit. Bodies take a `team`, which is one type for
/// all transports, so that they are compiled once.
namespace collective_suite {

using peerbus::collective::team;
using peerbus::collective::team_options;

/// Runs `body(team&)` on `ranks` ranks of `Group`.
template <class Group, class Body>
void on_team(std::size_t ranks, Body body, team_options options = {}) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [&](auto& comm) {
    team on{comm, options};
    body(on);
  });
  CHECK(worst_status == 0);
}

/// Runs `body(team&)` on groups of several sizes.
template <class Group, class Body>
void on_teams(Body body, team_options options = {}) {
  for (const std::size_t ranks : test::sizes_for<Group>()) on_team<Group>(ranks, body, options);
}

template <class T>
void check_copies(team& on, std::size_t count, std::uint64_t salt) {
  namespace coll = peerbus::collective;
  const std::size_t n = on.size();
  const std::size_t me = on.rank().index();
  const std::vector<T> mine = values<T>(me, count, salt);
  const std::vector<T> rows = values<T>(me, n * count, salt + 1);
  const auto row = [&](std::vector<T>& of, std::size_t r) {
    return std::span{of}.subspan(r * count, count);
  };
  const std::vector<T> of_all = gathered<T>(n, count, salt);
  const std::vector<T> columns = transposed<T>(n, me, count, salt + 1);

  std::vector<T> out(n * count);
  coll::all_gather(on, mine, out);
  expect_same<T>(out, of_all, "all_gather");
  out.assign(n * count, T{});
  std::ranges::copy(mine, row(out, me).begin());
  coll::all_gather(on, row(out, me), out);
  expect_same<T>(out, of_all, "all_gather in place");
  unaligned<T> bytes{n * count};
  coll::all_gather(on, unaligned<T>{mine}.span(), bytes.span());
  expect_same<T>(bytes.copy(), of_all, "all_gather unaligned");
  bytes.check_guards();

  out.assign(n * count, T{});
  coll::all_to_all(on, rows, out);
  expect_same<T>(out, columns, "all_to_all");
  out = rows;
  coll::all_to_all(on, out, out);
  expect_same<T>(out, columns, "all_to_all in place");

  for (std::size_t root = 0; root < n; root += n > 3 ? 3 : 1) {
    std::vector<T> data = me == root ? values<T>(root, count, salt) : std::vector<T>(count);
    coll::broadcast(on, data, rank_id{root});
    expect_same<T>(data, values<T>(root, count, salt), "broadcast");

    out.assign(me == root ? n * count : 0, T{});
    coll::gather(on, mine, out, rank_id{root});
    expect_same<T>(out, me == root ? of_all : std::vector<T>{}, "gather");
    if (me == root) {
      out.assign(n * count, T{});
      std::ranges::copy(mine, row(out, me).begin());
      coll::gather(on, row(out, me), out, rank_id{root});
      expect_same<T>(out, of_all, "gather in place");
    } else {
      coll::gather(on, mine, std::span<T>{}, rank_id{root});
    }

    std::vector<T> part(count);
    coll::scatter(on, me == root ? rows : std::vector<T>{}, part, rank_id{root});
    const std::vector<T> all_of_root = values<T>(root, n * count, salt + 1);
    const std::vector<T> expected(
        all_of_root.begin() + static_cast<std::ptrdiff_t>(me * count),
        all_of_root.begin() + static_cast<std::ptrdiff_t>((me + 1) * count));
    expect_same<T>(part, expected, "scatter");
    out = rows;
    if (me == root)
      coll::scatter(on, out, row(out, me), rank_id{root});
    else
      coll::scatter(on, std::span<const T>{}, part, rank_id{root});
    expect_same<T>(out, rows, "scatter in place");
  }
}

template <class T, class Op>
void check_reductions(team& on, std::size_t count, std::uint64_t salt, Op op) {
  namespace coll = peerbus::collective;
  const std::size_t n = on.size();
  const std::size_t me = on.rank().index();
  const std::vector<T> mine = values<T>(me, count, salt);
  std::vector<T> expected = all_reduced<T>(n, count, salt, op);

  std::vector<T> out(count);
  coll::all_reduce(on, mine, out, op);
  expect_same<T>(out, expected, "all_reduce");
  out = mine;
  coll::all_reduce(on, out, op);
  expect_same<T>(out, expected, "all_reduce in place");

  const rank_id root{count % n};
  out.assign(on.rank() == root ? count : 0, T{});
  coll::reduce(on, mine, out, op, root);
  expect_same<T>(out, on.rank() == root ? expected : std::vector<T>{}, "reduce");
  out = mine;
  coll::reduce(on, out, out, op, root);
  expect_same<T>(out, on.rank() == root ? expected : mine, "reduce in place");

  const std::vector<T> rows = values<T>(me, n * count, salt + 1);
  expected = all_reduced<T>(n, count, salt + 1, op, me * count);
  out.assign(count, T{});
  coll::reduce_scatter(on, rows, out, op);
  expect_same<T>(out, expected, "reduce_scatter");
  std::vector<T> all = rows;
  coll::reduce_scatter(on, all, std::span{all}.subspan(me * count, count), op);
  std::vector<T> after = rows;
  std::ranges::copy(expected, after.begin() + static_cast<std::ptrdiff_t>(me * count));
  expect_same<T>(all, after, "reduce_scatter in place");
}

/// A type that is no number, with a reduction that is none of the library's.
struct pair_of {
  std::int32_t a = 0;
  std::int64_t b = 0;
};
struct add_pairs {
  pair_of operator()(pair_of x, pair_of y) const noexcept { return {x.a + y.a, x.b ^ y.b}; }
};

inline void check_custom(team& on, std::size_t count) {
  std::vector<pair_of> data(count);
  const auto me = static_cast<std::int32_t>(on.rank().index());
  for (std::size_t i = 0; i < count; ++i) {
    data[i].a = me + static_cast<std::int32_t>(i);
    data[i].b = std::int64_t{1} << me;
  }
  peerbus::collective::all_reduce(on, data, add_pairs{});
  const auto n = static_cast<std::int32_t>(on.size());
  for (std::size_t i = 0; i < count; ++i) {
    test::expect_equal(data[i].a, n * static_cast<std::int32_t>(i) + n * (n - 1) / 2, "custom sum");
    test::expect_equal(data[i].b, (std::int64_t{1} << n) - 1, "custom xor");
  }
}

inline void check_types(team& on, std::size_t count, std::uint64_t salt) {
  namespace coll = peerbus::collective;
  check_copies<float>(on, count, salt);
  check_copies<std::uint8_t>(on, count, salt);
  check_reductions<float>(on, count, salt, coll::sum{});
  check_reductions<bf16>(on, count, salt, coll::sum{});
  check_reductions<double>(on, count, salt, coll::product{});
  check_reductions<std::int32_t>(on, count, salt, coll::maximum{});
  check_reductions<std::uint8_t>(on, count, salt, coll::sum{});
  check_reductions<std::int64_t>(on, count, salt, coll::minimum{});
  check_custom(on, count);
}

/// Scratch memory as small as eight ranks allow, so that few elements take many slices, and two
/// shots from 256 bytes on. Operands in windows are never staged.
inline constexpr team_options small_scratch{
    .scratch_bytes = 5120, .one_shot_bytes = 256, .window_bytes = 0};

inline void check_small(team& on) {
  std::uint64_t salt = 0;
  for (const std::size_t count : {0U, 1U, 3U, 16U, 17U, 64U, 65U, 257U})
    check_types(on, count, salt += 2);
}

/// More than one slice of the default scratch memory.
inline void check_large(team& on) {
  namespace coll = peerbus::collective;
  check_copies<float>(on, 150'001, 7);
  check_reductions<float>(on, 150'001, 9, coll::sum{});
  check_reductions<bf16>(on, 20'011, 11, coll::sum{});
}

}  // namespace collective_suite
