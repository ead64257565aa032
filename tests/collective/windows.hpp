// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/collective.hpp>
#include <peerbus/collective/in_window.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>

#include "collective/halves.hpp"
#include "collective/suite.hpp"
#include "support/ranks.hpp"

/// Operands in windows, which peers access where they lie if the transport lets them.
namespace collective_suite {

/// Runs all operations with operands in `memory`, whose place in it differs between ranks. Each
/// operand is changed as soon as the operation has returned.
template <class T, class Window>
void check_window_operands(team& on, Window& memory, std::size_t count, std::uint64_t salt) {
  namespace coll = peerbus::collective;
  const std::size_t n = on.size();
  const std::size_t me = on.rank().index();
  const auto parts = memory.template local<T>().subspan(me * 3);
  const std::span<T> input = parts.first(n * count);
  const std::span<T> output = parts.subspan(n * count, n * count);
  const auto in = [&](std::span<T> range) { return coll::in_window(memory, range); };
  const auto row = [&](std::span<T> of, std::size_t r) { return of.subspan(r * count, count); };
  const auto fill = [&](std::span<T> target) {
    for (std::size_t i = 0; i < target.size(); ++i) target[i] = value<T>(me, i, salt);
  };
  const auto spoil = [&] { std::ranges::fill(parts.first(2 * n * count), T{}); };
  const auto same = [&](std::span<T> given, auto expected_at, const char* what) {
    std::vector<T> expected(given.size());
    for (std::size_t i = 0; i < given.size(); ++i) expected[i] = expected_at(i);
    expect_same<T>(given, expected, what);
    spoil();
  };
  const auto of_all = [&](std::size_t i) { return value<T>(i / count, i % count, salt); };
  const auto transposed_at = [&](std::size_t i) {
    return value<T>(i / count, me * count + i % count, salt);
  };
  const auto total = [&](std::size_t i) { return reduced<T>(n, i, salt, coll::sum{}); };
  const auto total_of_row = [&](std::size_t i) { return total(me * count + i); };

  fill(row(input, 0));
  coll::all_gather(on, coll::in_window(memory, std::span<const T>{row(input, 0)}), output);
  same(output, of_all, "all_gather of a window");
  fill(row(output, me));
  coll::all_gather(on, in(row(output, me)), in(output));
  same(output, of_all, "all_gather in place in a window");

  fill(input);
  coll::all_to_all(on, in(input), output);
  same(output, transposed_at, "all_to_all of a window");
  fill(input);
  coll::all_to_all(on, in(input), in(input));
  same(input, transposed_at, "all_to_all in place in a window");

  fill(input);
  coll::all_reduce(on, in(row(input, 0)), row(output, 0), coll::sum{});
  same(row(output, 0), total, "all_reduce of a window");
  fill(input);
  coll::all_reduce(on, in(input), coll::sum{});
  same(input, total, "all_reduce in place in a window");

  fill(input);
  coll::reduce_scatter(on, in(input), row(output, 0), coll::sum{});
  same(row(output, 0), total_of_row, "reduce_scatter of a window");
  fill(input);
  coll::reduce_scatter(on, in(input), row(input, me), coll::sum{});
  same(row(input, me), total_of_row, "reduce_scatter in place in a window");

  const rank_id root{count % n};
  const bool is_root = on.rank() == root;
  fill(input);
  coll::broadcast(on, in(input), root);
  same(input, [&](std::size_t i) { return value<T>(root.index(), i, salt); }, "broadcast");
  fill(row(input, 0));
  coll::reduce(on, in(row(input, 0)), row(output, 0), coll::sum{}, root);
  same(row(output, 0), [&](std::size_t i) { return is_root ? total(i) : T{}; }, "reduce");
  fill(row(input, 0));
  coll::gather(on, in(row(input, 0)), output, root);
  same(output, [&](std::size_t i) { return is_root ? of_all(i) : T{}; }, "gather");
  fill(input);
  coll::scatter(on, in(is_root ? input : input.first(0)), row(output, 0), root);
  same(
      row(output, 0), [&](std::size_t i) { return value<T>(root.index(), me * count + i, salt); },
      "scatter");

  // In halves. Peers may read an input while this rank computes.
  const auto finish = [&](pending half) {
    compute(salt + me);
    half.finish();
  };
  fill(row(input, 0));
  finish(coll::start_all_gather(on, in(row(input, 0)), output));
  same(output, of_all, "all_gather of a window, in halves");
  fill(input);
  finish(coll::start_all_to_all(on, in(input), output));
  same(output, transposed_at, "all_to_all of a window, in halves");
  fill(input);
  finish(coll::start_all_reduce(on, in(input), coll::sum{}));
  same(input, total, "all_reduce in place in a window, in halves");
  fill(input);
  finish(coll::start_reduce_scatter(on, in(input), row(output, 0), coll::sum{}));
  same(row(output, 0), total_of_row, "reduce_scatter of a window, in halves");

  // The variable forms: rank r contributes one element less than count, if r is odd.
  std::vector<std::uint64_t> counts(n, count);
  std::vector<std::uint64_t> offsets(n);
  for (std::size_t r = 0; r < n; ++r) {
    if (r % 2 == 1 && count != 0) counts[r] = count - 1;
    offsets[r] = r * count;
  }
  const coll::part_layout layout{counts, offsets};
  const std::vector<std::uint64_t> own_counts(n, counts[me]);
  const auto if_sent = [&](std::size_t i, auto expected_at) {
    return i % count < counts[i / count] ? expected_at(i) : T{};
  };
  fill(row(input, 0));
  coll::all_gather_v(on, in(row(input, 0).first(counts[me])), output, layout);
  same(output, [&](std::size_t i) { return if_sent(i, of_all); }, "all_gather_v of a window");
  fill(input);
  coll::all_to_all_v(on, in(input), {own_counts, offsets}, output, layout);
  same(
      output, [&](std::size_t i) { return if_sent(i, transposed_at); }, "all_to_all_v of a window");
  fill(input);
  coll::reduce_scatter_v(on, in(input), layout, row(output, 0).first(counts[me]), coll::sum{});
  same(row(output, 0).first(counts[me]), total_of_row, "reduce_scatter_v of a window");
}

template <class Group>
void check_windows(std::size_t ranks) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [](auto& comm) {
    const std::size_t most = 20'001;
    auto memory = comm.make_window((2 * most + 3) * comm.size() * sizeof(float), 0);
    team small{comm, small_scratch};
    team on{comm};
    std::uint64_t salt = 40;
    for (const std::size_t count : {0U, 1U, 5U, 16U, 257U}) {
      check_window_operands<float>(small, memory, count, ++salt);
      check_window_operands<bf16>(small, memory, count, ++salt);
    }
    check_window_operands<float>(on, memory, most, ++salt);
    check_window_operands<float>(on, memory, 16, ++salt);  // Staged, except by variable forms.
    std::vector<float> elsewhere(3);
    const std::span<float> outside{elsewhere};
    test::expect_error(peerbus::errc::invalid_argument, {"an input outside the window"}, [&] {
      peerbus::collective::all_reduce(on, peerbus::collective::in_window(memory, outside),
                                      peerbus::collective::sum{});
    });
  });
  CHECK(worst_status == 0);
}

/// Ranks of which one gives a window and the others do not.
template <class Group>
void check_window_mismatch() {
  const int worst_status = Group::run(3, [](auto& comm) {
    auto memory = comm.make_window(1024, 0);
    team on{comm};
    const std::span<float> part = memory.template local<float>().first(4);
    std::vector<float> out(12);
    test::expect_error(
        peerbus::errc::mismatch,
        {"rank 0 called all_gather of 4 x f32 in window " + std::to_string(memory.number()) +
         ", rank 1 called all_gather of 4 x f32 [ranks disagree]"},
        [&] {
          if (on.rank() == rank_id{1})
            peerbus::collective::all_gather(on, part, out);
          else
            peerbus::collective::all_gather(on, peerbus::collective::in_window(memory, part), out);
        });
  });
  CHECK(worst_status == 0);
}

/// Ranks of which one gives a window and the others another one.
template <class Group>
void check_different_windows() {
  namespace coll = peerbus::collective;
  const int worst_status = Group::run(3, [](auto& comm) {
    constexpr std::size_t count = 1000;
    const std::size_t n = comm.size();
    auto large = comm.make_window(64 * n * count, 0);
    auto small = comm.make_window(2 * n * count * sizeof(float), 0);
    test::expect_equal(small.number(), large.number() + 1, "the number of the next window");
    team on{comm, {.window_bytes = 0}};
    const bool is_odd = on.rank() == rank_id{1};
    const auto& memory = is_odd ? small : large;
    // At an offset that the smaller window does not have.
    const std::span<float> given =
        memory.template local<float>().subspan(is_odd ? 0 : 10 * n * count, n * count);
    const std::span<float> part = given.first(count);
    std::vector<float> out(n * count, -7.0F);
    const rank_id root{0};
    const std::vector<std::uint64_t> counts(n, count);
    const coll::part_layout parts{counts};
    const auto in = [&](std::span<float> range) { return coll::in_window(memory, range); };
    const std::span row = std::span{out}.first(count);
    const auto expect_mismatch = [&](std::string_view operation, auto&& call) {
      std::ranges::fill(given, 1.0F);
      const std::string in_window_of = " in window ";
      test::expect_error(peerbus::errc::mismatch,
                         {std::string{operation}, in_window_of + std::to_string(large.number()),
                          in_window_of + std::to_string(small.number()) + " [ranks disagree]"},
                         call);
      test::expect_equal(std::ranges::count(out, -7.0F), std::ssize(out), "elements not written");
      test::expect_equal(std::ranges::count(given, 1.0F), std::ssize(given), "elements unchanged");
    };
    expect_mismatch("all_gather", [&] { coll::all_gather(on, in(part), out); });
    expect_mismatch("all_to_all", [&] { coll::all_to_all(on, in(given), out); });
    expect_mismatch("all_reduce", [&] { coll::all_reduce(on, in(part), row, coll::sum{}); });
    expect_mismatch("all_reduce", [&] { coll::all_reduce(on, in(part), coll::sum{}); });
    expect_mismatch("reduce_scatter",
                    [&] { coll::reduce_scatter(on, in(given), row, coll::sum{}); });
    expect_mismatch("broadcast", [&] { coll::broadcast(on, in(part), root); });
    expect_mismatch("reduce", [&] { coll::reduce(on, in(part), row, coll::sum{}, root); });
    expect_mismatch("gather", [&] { coll::gather(on, in(part), out, root); });
    expect_mismatch("scatter", [&] { coll::scatter(on, in(given), row, root); });
    expect_mismatch("all_gather_v", [&] { coll::all_gather_v(on, in(part), out, parts); });
    expect_mismatch("all_to_all_v", [&] { coll::all_to_all_v(on, in(given), parts, out, parts); });
    expect_mismatch("reduce_scatter_v",
                    [&] { coll::reduce_scatter_v(on, in(given), parts, row, coll::sum{}); });
    expect_mismatch("gather_v", [&] { coll::gather_v(on, in(part), out, parts, root); });
    expect_mismatch("scatter_v", [&] { coll::scatter_v(on, in(given), parts, row, root); });
    expect_mismatch("all_reduce",
                    [&] { coll::start_all_reduce(on, in(part), coll::sum{}).finish(); });
    // The team is still usable, and the windows too.
    coll::all_reduce(on, coll::in_window(small, small.template local<float>().first(count)),
                     coll::sum{});
  });
  CHECK(worst_status == 0);
}

/// A rank that gives a window of another communicator of the same ranks, whose numbers are equal.
template <class Group>
void check_foreign_window() {
  namespace coll = peerbus::collective;
  const int worst_status = Group::run(3, [](auto& comm) {
    using communicator = std::remove_reference_t<decltype(comm)>;
    using transport = std::remove_reference_t<decltype(comm.bus())>;
    communicator other{transport{comm.bus().boot()}};
    auto own = comm.make_window(1024, 0);
    auto foreign = other.make_window(1024, 0);
    test::expect_equal(own.number(), foreign.number(), "the numbers of both");
    team on{comm};
    const bool is_odd = on.rank() == rank_id{1};
    auto& memory = is_odd ? foreign : own;
    const std::string wrong = "an input in a window of another communicator";
    test::expect_error(is_odd ? peerbus::errc::invalid_argument : peerbus::errc::refused,
                       {(is_odd ? "was given " : "rank 1 was given ") + wrong}, [&] {
                         coll::all_reduce(on,
                                          coll::in_window(memory, memory.template local<float>()),
                                          coll::sum{});
                       });
  });
  CHECK(worst_status == 0);
}

}  // namespace collective_suite
