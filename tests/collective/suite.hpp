// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/collective/algorithm.hpp>
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

#include "support/ranks.hpp"

/// Every operation against a plain loop, bit by bit. Bodies take a `team`, which is one type for
/// all transports, so that they are compiled once.
namespace collective_suite {

using peerbus::bf16;
using peerbus::rank_id;
using peerbus::collective::team;
using peerbus::collective::team_options;

/// The numbers of ranks that most cases run on.
inline constexpr std::size_t group_sizes[]{1, 2, 3, 4, 5, 8};

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
  for (const std::size_t ranks : group_sizes) on_team<Group>(ranks, body, options);
}

inline std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 31U)) * 0x7fb5d329728ea185U;
  x = (x ^ (x >> 27U)) * 0x81dadef4bc2dd44dU;
  return x ^ (x >> 33U);
}

/// The element `index` that `rank` contributes. Magnitudes differ widely, so that sums of floating
/// point depend on their order.
template <class T>
T value(std::size_t rank, std::size_t index, std::uint64_t salt) {
  const std::uint64_t bits = mix(mix(mix(salt + 1) + rank) + index);
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(bits);
  } else {
    const auto mantissa = static_cast<float>(static_cast<std::int32_t>(bits));
    const auto scale = static_cast<float>(1U << ((bits >> 40U) % 24));
    return static_cast<T>(mantissa / scale);
  }
}

template <class T>
std::vector<T> values(std::size_t rank, std::size_t count, std::uint64_t salt) {
  std::vector<T> made(count);
  for (std::size_t i = 0; i < count; ++i) made[i] = value<T>(rank, i, salt);
  return made;
}

/// What a rank must get for element `index` of all ranks, reduced in their order.
template <class T, class Op>
T reduced(std::size_t ranks, std::size_t index, std::uint64_t salt, Op op) {
  using wide = std::conditional_t<std::is_same_v<T, bf16>, float, T>;
  auto sum = static_cast<wide>(value<T>(0, index, salt));
  for (std::size_t r = 1; r < ranks; ++r)
    sum = static_cast<wide>(op(sum, static_cast<wide>(value<T>(r, index, salt))));
  return static_cast<T>(sum);
}

template <class T>
void expect_same(std::span<const T> given, const std::vector<T>& expected, std::string_view what) {
  test::expect_equal(given.size(), expected.size(), what, ": size");
  for (std::size_t i = 0; i < given.size(); ++i)
    if (std::memcmp(&given[i], &expected[i], sizeof(T)) != 0)
      test::fail(what, " of ", given.size(), " x ", sizeof(T), " bytes: element ", i, " is wrong");
}

/// What `all_gather` of `values` gives.
template <class T>
std::vector<T> gathered(std::size_t ranks, std::size_t count, std::uint64_t salt) {
  std::vector<T> made;
  for (std::size_t r = 0; r < ranks; ++r) {
    const std::vector<T> theirs = values<T>(r, count, salt);
    made.insert(made.end(), theirs.begin(), theirs.end());
  }
  return made;
}

/// What `all_to_all` of `values`, of a row of `count` for each rank, gives rank `self`.
template <class T>
std::vector<T> transposed(std::size_t ranks, std::size_t self, std::size_t count,
                          std::uint64_t salt) {
  std::vector<T> made;
  for (std::size_t r = 0; r < ranks; ++r)
    for (std::size_t i = 0; i < count; ++i) made.push_back(value<T>(r, self * count + i, salt));
  return made;
}

/// A range whose elements lie at no multiple of their size, in memory that is longer by a guard.
template <class T>
class unaligned {
 public:
  explicit unaligned(std::size_t count) : count_{count}, bytes_((count + 2) * sizeof(T)) {
    std::memset(bytes_.data(), 0x5a, bytes_.size());
  }
  explicit unaligned(const std::vector<T>& from) : unaligned{from.size()} {
    if (!from.empty()) std::memcpy(start(), from.data(), from.size() * sizeof(T));
  }
  /// Bytes, as no object of type `T` may lie here.
  [[nodiscard]] std::span<std::byte> span() { return {start(), count_ * sizeof(T)}; }
  [[nodiscard]] std::vector<T> copy() {
    std::vector<T> made(count_);
    if (count_ != 0) std::memcpy(made.data(), start(), count_ * sizeof(T));
    return made;
  }
  void check_guards() const {
    const std::size_t end = 1 + count_ * sizeof(T);
    for (std::size_t i = 0; i < bytes_.size(); ++i)
      if ((i < 1 || i >= end) && bytes_[i] != std::byte{0x5a})
        test::fail("a byte beside an output was written");
  }

 private:
  std::byte* start() { return bytes_.data() + 1; }
  std::size_t count_;
  std::vector<std::byte> bytes_;
};

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
  std::vector<T> expected(count);
  for (std::size_t i = 0; i < count; ++i) expected[i] = reduced<T>(n, i, salt, op);

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
  for (std::size_t i = 0; i < count; ++i) expected[i] = reduced<T>(n, me * count + i, salt + 1, op);
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

/// Reductions of floating point whose result depends on no order, as all partial results are exact.
template <class T>
void check_exact(team& on, std::size_t count) {
  const auto part = [](std::size_t rank, std::size_t i) { return (7 * rank + i) % 5; };
  const std::size_t me = on.rank().index();
  std::vector<T> data(count);
  std::vector<T> expected(count);
  for (std::size_t i = 0; i < count; ++i) {
    data[i] = static_cast<T>(static_cast<float>(part(me, i)));
    std::size_t all = 0;
    for (std::size_t r = 0; r < on.size(); ++r) all += part(r, i);
    expected[i] = static_cast<T>(static_cast<float>(all));
  }
  std::vector<T> rows;
  for (std::size_t row = 0; row < on.size(); ++row)
    rows.insert(rows.end(), data.begin(), data.end());
  peerbus::collective::all_reduce(on, data, peerbus::collective::sum{});
  expect_same<T>(data, expected, "all_reduce of small integers");
  peerbus::collective::reduce_scatter(on, rows, data, peerbus::collective::sum{});
  expect_same<T>(data, expected, "reduce_scatter of small integers");
}

/// Sums that depend on the order have equal bits on all ranks, and again in the next call.
template <class T>
void check_same_bits(team& on, std::size_t count, std::uint64_t salt) {
  namespace coll = peerbus::collective;
  const std::vector<T> own = values<T>(on.rank().index(), count, salt);
  std::vector<T> out(count);
  std::vector<T> again = own;
  coll::all_reduce(on, own, out, coll::sum{});
  coll::all_reduce(on, again, coll::sum{});
  expect_same<T>(again, out, "all_reduce once more");
  std::vector<T> all(on.size() * count);
  coll::all_gather(on, out, all);
  for (std::size_t r = 0; r < on.size(); ++r)
    expect_same<T>(std::span{all}.subspan(r * count, count), out, "all_reduce of another rank");
}

/// What `two_levels` must give for element `index`, if rank r is in group r modulo `groups`.
template <class T>
T reduced_by_groups(std::size_t ranks, std::size_t groups, std::size_t index, std::uint64_t salt) {
  using wide = std::conditional_t<std::is_same_v<T, bf16>, float, T>;
  wide sum{};
  for (std::size_t g = 0; g < groups; ++g) {
    wide part{};
    for (std::size_t r = g; r < ranks; r += groups) {
      const auto element = static_cast<wide>(value<T>(r, index, salt));
      part = r == g ? element : part + element;
    }
    part = static_cast<wide>(static_cast<T>(part));
    sum = g == 0 ? part : sum + part;
  }
  return static_cast<T>(sum);
}

template <class T>
void check_sum_by_groups(team& on, std::size_t count, std::uint64_t salt) {
  const std::size_t groups = on.shape().groups();
  std::vector<T> data = values<T>(on.rank().index(), count, salt);
  std::vector<T> expected(count);
  for (std::size_t i = 0; i < count; ++i)
    expected[i] = reduced_by_groups<T>(on.size(), groups, i, salt);
  peerbus::collective::all_reduce(on, data, peerbus::collective::sum{});
  expect_same<T>(data, expected, "all_reduce by two_levels");

  const std::size_t me = on.rank().index();
  const std::vector<T> rows = values<T>(me, on.size() * count, salt);
  for (std::size_t i = 0; i < count; ++i)
    expected[i] = reduced_by_groups<T>(on.size(), groups, me * count + i, salt);
  peerbus::collective::reduce_scatter(on, rows, data, peerbus::collective::sum{});
  expect_same<T>(data, expected, "reduce_scatter by two_levels");
}

/// All operations by the algorithm that the options name.
inline void check_algorithm(team& on) {
  namespace coll = peerbus::collective;
  const coll::algorithm by = on.options().algorithm;
  std::uint64_t salt = 100;
  for (const std::size_t count : {0U, 1U, 3U, 17U, 64U, 65U, 257U}) {
    salt += 2;
    if (coll::keeps_rank_order(by)) {
      check_types(on, count, salt);
      continue;
    }
    check_copies<float>(on, count, salt);
    check_copies<std::uint8_t>(on, count, salt);
    check_reductions<std::int32_t>(on, count, salt, coll::maximum{});
    check_reductions<std::uint8_t>(on, count, salt, coll::sum{});
    check_custom(on, count);
    check_exact<float>(on, count);
    check_exact<bf16>(on, count);
    check_same_bits<float>(on, count, salt);
    if (on.algorithm_of(coll::choice_of::all_reduce, 1) != coll::algorithm::two_levels) continue;
    check_sum_by_groups<float>(on, count, salt);
    check_sum_by_groups<bf16>(on, count, salt);
  }
}

/// Runs `check_algorithm` for each algorithm on groups of several sizes. `possible` are those that
/// the largest groups must be able to use.
template <class Group>
void on_teams_by(std::initializer_list<peerbus::collective::algorithm> possible,
                 std::initializer_list<std::size_t> sizes) {
  namespace coll = peerbus::collective;
  for (const coll::algorithm by : possible)
    for (const std::size_t ranks : sizes) {
      CAPTURE(name_of(by));
      const auto body = [by](team& on) {
        const auto expect_chosen = [&](coll::choice_of operation) {
          test::expect_equal(static_cast<int>(on.algorithm_of(operation, 300)),
                             static_cast<int>(by), "the algorithm");
        };
        if (on.size() >= 4 && on.size() % 2 == 0) {
          expect_chosen(coll::choice_of::all_reduce);
          if (!coll::keeps_rank_order(by)) expect_chosen(coll::choice_of::reduce_scatter);
          if (by == coll::algorithm::two_levels) expect_chosen(coll::choice_of::broadcast);
        }
        check_algorithm(on);
      };
      on_team<Group>(ranks, body, {.scratch_bytes = 10240, .window_bytes = 0, .algorithm = by});
    }
}

/// More than one slice of the default scratch memory.
inline void check_large(team& on) {
  namespace coll = peerbus::collective;
  check_copies<float>(on, 150'001, 7);
  check_reductions<float>(on, 150'001, 9, coll::sum{});
  check_reductions<bf16>(on, 20'011, 11, coll::sum{});
}

}  // namespace collective_suite
