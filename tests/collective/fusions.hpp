// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/concept.hpp>
#include <peerbus/codec/fp8_e4m3_per_128.hpp>
#include <peerbus/codec/fp8_scales.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/collective/all_gather_coded.hpp>
#include <peerbus/collective/all_reduce_add.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/rank.hpp>

#include "collective/suite.hpp"
#include "support/ranks.hpp"

/// Operations that do something else in the same pass, against the same in two steps.
namespace collective_suite {

template <class Codec>
void check_coded(team& on, std::size_t tokens, std::size_t hidden, std::uint64_t salt) {
  namespace coll = peerbus::collective;
  const Codec codec;
  const std::size_t n = on.size();
  const std::size_t row_bytes = Codec::row_bytes(hidden);
  const std::size_t scale_bytes = Codec::scale_bytes(hidden);
  std::vector<std::byte> rows(n * tokens * row_bytes + 16);
  std::vector<std::byte> scales(n * tokens * scale_bytes + 4);
  std::vector<float> wide(n * tokens * hidden);
  std::vector<bf16> narrow(wide.size());
  for (std::size_t r = 0; r < n; ++r) {
    const std::vector<bf16> theirs = values<bf16>(r, tokens * hidden, salt);
    for (std::size_t t = 0; t < tokens; ++t) {
      // The codec is given aligned memory.
      std::vector<std::byte> row(row_bytes);
      std::vector<std::byte> scale(scale_bytes);
      codec.encode(std::span{theirs}.subspan(t * hidden, hidden), row, scale);
      codec.decode(row, scale, std::span{wide}.subspan((r * tokens + t) * hidden, hidden));
      std::ranges::copy(row,
                        rows.begin() + static_cast<std::ptrdiff_t>((r * tokens + t) * row_bytes));
      std::ranges::copy(
          scale, scales.begin() + static_cast<std::ptrdiff_t>((r * tokens + t) * scale_bytes));
    }
  }
  std::ranges::transform(wide, narrow.begin(), [](float x) { return bf16{x}; });
  rows.resize(rows.size() - 16);
  scales.resize(scales.size() - 4);

  const std::vector<bf16> own = values<bf16>(on.rank().index(), tokens * hidden, salt);
  std::vector<float> out(wide.size());
  coll::all_gather_coded(on, codec, hidden, own, out);
  expect_same<float>(out, wide, "all_gather_coded, decoded to f32");
  std::vector<bf16> short_out(narrow.size());
  coll::all_gather_coded(on, codec, hidden, own, short_out);
  expect_same<bf16>(short_out, narrow, "all_gather_coded, decoded to bf16");
  short_out.assign(narrow.size(), bf16{});
  const auto place = std::span{short_out}.subspan(on.rank().index() * own.size(), own.size());
  std::ranges::copy(own, place.begin());
  coll::all_gather_coded(on, codec, hidden, place, short_out);
  expect_same<bf16>(short_out, narrow, "all_gather_coded in place");
  std::vector<std::byte> row_out(rows.size());
  std::vector<std::byte> scale_out(scales.size());
  coll::all_gather_coded(on, codec, hidden, own, coll::coded_rows{row_out, scale_out});
  expect_same<std::byte>(row_out, rows, "all_gather_coded, rows");
  expect_same<std::byte>(scale_out, scales, "all_gather_coded, scales");
}

template <class T>
void check_add(team& on, std::size_t count, std::uint64_t salt) {
  namespace coll = peerbus::collective;
  const std::vector<T> input = values<T>(on.rank().index(), count, salt);
  const std::vector<T> residual = values<T>(on.size(), count, salt);
  // The residual is what a rank more would contribute.
  const std::vector<T> expected = all_reduced<T>(on.size() + 1, count, salt, coll::sum{});
  std::vector<T> out(count);
  coll::all_reduce_add(on, input, residual, out);
  expect_same<T>(out, expected, "all_reduce_add");
  out = residual;
  coll::all_reduce_add(on, input, out, out);
  expect_same<T>(out, expected, "all_reduce_add to the residual");
  out = input;
  coll::all_reduce_add(on, out, residual, out);
  expect_same<T>(out, expected, "all_reduce_add in place");
}

inline void check_fusions(team& on) {
  namespace codec = peerbus::codec;
  std::uint64_t salt = 300;
  for (const std::size_t tokens : {0U, 1U, 3U, 21U}) {
    check_coded<codec::int8_per_token>(on, tokens, 24, ++salt);
    check_coded<codec::bf16>(on, tokens, 24, ++salt);
  }
  for (const std::size_t count : {0U, 1U, 17U, 64U, 700U}) {
    check_add<float>(on, count, ++salt);
    check_add<bf16>(on, count, ++salt);
    check_add<std::int32_t>(on, count, ++salt);
  }
}

/// Tokens as large as a model's, in many slices.
inline void check_large_fusions(team& on) {
  check_coded<peerbus::codec::fp8_e4m3_per_128<peerbus::codec::f32_scales>>(on, 40, 2048, 400);
  check_add<bf16>(on, 20'011, 401);
}

}  // namespace collective_suite
