// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include <doctest/doctest.h>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/moe/exchange.hpp>

#include "support/ranks.hpp"

namespace conformance {

/// `pairs` dispatches and combines in a row, of different inputs, on tokens whose values say which
/// rank and operation they belong to. Expert e multiplies by 2^e and the weights undo it, so what
/// comes home is exactly the token. It needs the machine for itself: two ranks that have a core
/// each spin, which takes thirty times as long beside another test.
template <class Group>
void check_soak(std::size_t ranks, std::uint64_t pairs) {
  constexpr std::size_t hidden = 8;
  constexpr std::size_t top_k = 2;
  constexpr std::size_t most = 3;
  using peerbus::bf16;
  const auto digit = [](std::uint64_t op, std::size_t rank, std::size_t token, std::size_t h) {
    if (h == 0) return bf16{static_cast<float>(rank + 1)};
    if (h == 1) return bf16{static_cast<float>(token + 1)};
    return bf16{static_cast<float>((op >> (6 * (h - 2))) % 64 + 1)};
  };
  // Two experts a rank; a token goes to one of this rank's and one of the next.
  const auto expert_of = [ranks](std::uint64_t op, std::size_t rank, std::size_t token,
                                 std::size_t k) {
    return ((rank + k) % ranks) * 2 + (op + token) % 2;
  };
  const auto count_of = [](std::uint64_t op, std::size_t rank) {
    return static_cast<std::size_t>((op / 3 + rank * 2) % (most + 1));
  };
  const int worst_status = Group::run(ranks, [&](auto& comm) {
    peerbus::moe::exchange moe{
        comm,
        {.experts = 2 * ranks,
         .hidden = hidden,
         .top_k = top_k,
         .max_tokens = most,
         .stream_from = comm.rank().index() % 2 == 0 ? 0 : peerbus::moe::never_stream},
        peerbus::codec::bf16{}};
    const std::size_t me = comm.rank().index();
    std::array<bf16, most * hidden> tokens;
    std::array<bf16, most * hidden> out;
    std::array<std::int32_t, most * top_k> experts;
    std::array<float, most * top_k> weights;
    for (std::uint64_t op = 1; op <= pairs; ++op) {
      const std::size_t count = count_of(op, me);
      for (std::size_t t = 0; t < count; ++t) {
        for (std::size_t h = 0; h < hidden; ++h) tokens[t * hidden + h] = digit(op, me, t, h);
        for (std::size_t k = 0; k < top_k; ++k) {
          const std::size_t e = expert_of(op, me, t, k);
          experts[t * top_k + k] = static_cast<std::int32_t>(e);
          weights[t * top_k + k] = 0.5F / static_cast<float>(1U << e);
        }
      }
      const std::span mine{tokens.data(), count * hidden};
      const auto got = moe.dispatch(mine, {std::span{std::as_const(experts)}.first(count * top_k),
                                           std::span{std::as_const(weights)}.first(count * top_k)});
      std::size_t expected_rows = 0;
      for (std::size_t r = 0; r < ranks; ++r)
        for (std::size_t t = 0; t < count_of(op, r); ++t)
          for (std::size_t k = 0; k < top_k; ++k)
            if (expert_of(op, r, t, k) / 2 == me) ++expected_rows;
      test::expect_equal(got.rows(), expected_rows, "operation ", op, ": rows");
      for (const auto& expert : got.experts())
        for (std::size_t row = 0; row < expert.count(); ++row) {
          const auto from = expert.origin(row);
          for (std::size_t h = 0; h < hidden; ++h) {
            const bf16 value = expert.row(row)[h];
            test::expect(value == digit(op, from.rank.index(), from.token, h), "operation ", op,
                         ", expert ", expert.id(), ", row ", row, ", channel ", h,
                         " to be of rank ", from.rank.index(), ", token ", from.token);
            expert.output(row)[h] =
                bf16{static_cast<float>(value) * static_cast<float>(1U << expert.id())};
          }
        }
      moe.combine(got, std::span{out}.first(count * hidden));
      for (std::size_t i = 0; i < count * hidden; ++i)
        test::expect(out[i] == tokens[i], "operation ", op, ", token ", i / hidden, ", channel ",
                     i % hidden, " to come home as it left");
    }
  });
  CHECK(worst_status == 0);
}

}  // namespace conformance
