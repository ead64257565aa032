// SPDX-License-Identifier: MIT
// ctest: timeout=120
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/collective.hpp>
#include <peerbus/collective/run_request.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>

#include "collective/suite.hpp"
#include "collective/values.hpp"
#include "support/groups.hpp"
#include "support/ranks.hpp"

namespace request_test {

namespace coll = peerbus::collective;
using coll::operation_kind;
using peerbus::errc;

namespace {

constexpr std::size_t count = 700;  // Of a row.

/// Does what `asked` says at once and in halves, to a copy of `before`, and compares the output
/// with that of `call(output)`.
template <class Call>
void check(collective_suite::team& on, coll::request asked, const std::vector<float>& before,
           std::string_view name, Call call) {
  std::vector<float> expected = before;
  call(expected);
  for (const bool in_halves : {false, true}) {
    std::vector<float> out = before;
    asked.element = coll::element_type::of<float>();
    asked.output = std::as_writable_bytes(std::span{out});
    if (asked.what == operation_kind::broadcast) asked.input = asked.output;
    if (in_halves)
      coll::start(on, asked).finish();
    else
      coll::run(on, asked);
    collective_suite::expect_same<float>(out, expected, name);
  }
}

void check_all(collective_suite::team& on) {
  const std::size_t n = on.size();
  const std::size_t me = on.rank().index();
  const peerbus::rank_id root{n - 1};
  const std::vector<float> row = collective_suite::values<float>(me, count, 1);
  const std::vector<float> rows = collective_suite::values<float>(me, n * count, 2);
  const std::vector<float> residual = collective_suite::values<float>(99, count, 3);
  const std::vector<float> one(count);
  const std::vector<float> all(n * count);
  const auto bytes = [](const std::vector<float>& values) {
    return std::as_bytes(std::span{values});
  };
  const std::vector<std::uint64_t> counts(n, count);
  const coll::part_layout parts{counts};

  check(on, {.what = operation_kind::broadcast, .root = root}, row, "broadcast",
        [&](auto& out) { coll::broadcast(on, out, root); });
  check(on, {.what = operation_kind::gather, .input = bytes(row), .root = root}, all, "gather",
        [&](auto& out) { coll::gather(on, row, out, root); });
  check(on, {.what = operation_kind::scatter, .input = bytes(rows), .root = root}, one, "scatter",
        [&](auto& out) { coll::scatter(on, rows, out, root); });
  check(on, {.what = operation_kind::all_gather, .input = bytes(row)}, all, "all_gather",
        [&](auto& out) { coll::all_gather(on, row, out); });
  check(on, {.what = operation_kind::all_to_all, .input = bytes(rows)}, all, "all_to_all",
        [&](auto& out) { coll::all_to_all(on, rows, out); });
  check(on, {.what = operation_kind::gather_v, .input = bytes(row), .root = root, .parts = parts},
        all, "gather_v", [&](auto& out) { coll::gather_v(on, row, out, parts, root); });
  check(on, {.what = operation_kind::scatter_v, .input = bytes(rows), .root = root, .parts = parts},
        one, "scatter_v", [&](auto& out) { coll::scatter_v(on, rows, parts, out, root); });
  check(on, {.what = operation_kind::all_gather_v, .input = bytes(row), .parts = parts}, all,
        "all_gather_v", [&](auto& out) { coll::all_gather_v(on, row, out, parts); });
  check(on,
        {.what = operation_kind::all_to_all_v,
         .input = bytes(rows),
         .parts = parts,
         .received_parts = parts},
        all, "all_to_all_v", [&](auto& out) { coll::all_to_all_v(on, rows, parts, out, parts); });
  const auto reduced = [&](auto op, coll::reduction_kind kind) {
    check(on,
          {.what = operation_kind::reduce, .input = bytes(row), .root = root, .reduction = kind},
          one, "reduce", [&](auto& out) { coll::reduce(on, row, out, op, root); });
    check(on, {.what = operation_kind::all_reduce, .input = bytes(row), .reduction = kind}, one,
          "all_reduce", [&](auto& out) { coll::all_reduce(on, row, out, op); });
    check(on, {.what = operation_kind::reduce_scatter, .input = bytes(rows), .reduction = kind},
          one, "reduce_scatter", [&](auto& out) { coll::reduce_scatter(on, rows, out, op); });
    check(on,
          {.what = operation_kind::reduce_scatter_v,
           .input = bytes(rows),
           .reduction = kind,
           .parts = parts},
          one, "reduce_scatter_v",
          [&](auto& out) { coll::reduce_scatter_v(on, rows, parts, out, op); });
  };
  reduced(coll::sum{}, coll::reduction_kind::sum);
  reduced(coll::product{}, coll::reduction_kind::product);
  reduced(coll::minimum{}, coll::reduction_kind::minimum);
  reduced(coll::maximum{}, coll::reduction_kind::maximum);
  check(on,
        {.what = operation_kind::all_reduce_add,
         .input = bytes(row),
         .residual = std::as_bytes(std::span{residual})},
        one, "all_reduce_add", [&](auto& out) { coll::all_reduce_add(on, row, residual, out); });
}

}  // namespace

TEST_CASE("requests do what the functions of their names do") {
  for (const std::size_t ranks : {1U, 2U, 3U})
    collective_suite::on_team<test::direct_processes>(ranks, check_all,
                                                      collective_suite::small_scratch);
}

TEST_CASE("requests that cannot be carried out are refused on all ranks") {
  CHECK(coll::can_reduce(coll::element_named("bf16", 2)));
  CHECK_FALSE(coll::can_reduce(coll::element_type::of<std::uint32_t>()));
  collective_suite::on_team<test::direct_processes>(3, [](collective_suite::team& on) {
    std::vector<std::uint32_t> words(8);
    const auto input = std::as_bytes(std::span{words});
    const auto output = std::as_writable_bytes(std::span{words});
    const coll::request wrong{.what = operation_kind::all_reduce,
                              .element = coll::element_type::of<std::uint32_t>(),
                              .input = input,
                              .output = output};
    test::expect_error(errc::invalid_argument, {"elements to reduce of type u32, expected f32"},
                       [&] { coll::run(on, wrong); });
    test::expect_error(errc::invalid_argument, {"elements to reduce of type u32"},
                       [&] { static_cast<void>(coll::start(on, wrong)); });

    // A caller that has found its arguments bad, while the others call the operation.
    coll::request right = wrong;
    right.element = coll::element_named("i32", 4);
    const bool is_wrong = on.rank().index() == 1;
    test::expect_error(is_wrong ? errc::invalid_argument : errc::refused, {"a shape of its own"},
                       [&] {
                         if (is_wrong)
                           coll::refuse(on, "all_reduce", right.element, "a shape of its own");
                         coll::run(on, right);
                       });
    coll::run(on, right);
  });
}

}  // namespace request_test
