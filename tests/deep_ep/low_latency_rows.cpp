// SPDX-License-Identifier: MIT
#include "deep_ep/low_latency_rows.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/compat/deep_ep.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/fp8.hpp>
#include <peerbus/core/text.hpp>

#include "deep_ep/low_latency_oracle.hpp"
#include "support/e4m3_oracle.hpp"
#include "support/oracle.hpp"
#include "support/ranks.hpp"

namespace low_latency_suite {
namespace {

// What a received element reads as.
float e4m3_value(peerbus::fp8_e4m3 code, float scale) {
  const unsigned magnitude = code.bits & 0x7fU;
  const double value = magnitude == 0x7f
                           ? static_cast<double>(std::numeric_limits<float>::quiet_NaN())
                           : oracle::e4m3_values()[magnitude];
  const auto read = static_cast<float>(value * static_cast<double>(scale));
  return code.bits < 0x80 ? read : -read;
}

// The scale of a group, by the tensor's strides.
float scale_at(const deep_ep::const_tensor& scales, std::size_t e, std::size_t row,
               std::size_t group) {
  if (scales.type() == deep_ep::dtype::float32) return scales.at<float>(e, row, group);
  const auto word = static_cast<std::uint32_t>(scales.at<std::int32_t>(e, row, group / 4));
  const std::uint32_t exponent = word >> (8 * (group % 4)) & 0xffU;
  return exponent == 0xff ? std::numeric_limits<float>::quiet_NaN()
                          : std::ldexp(1.0F, static_cast<int>(exponent) - 127);
}

}  // namespace

std::vector<float> read_row(const deep_ep::low_latency_dispatch_result& got, std::size_t e,
                            std::size_t i) {
  const std::size_t hidden = got.recv_x.size(2);
  std::vector<float> values(hidden);
  if (!got.recv_x_scales) {
    const bf16* const row = &got.recv_x.at<bf16>(e, i);
    for (std::size_t h = 0; h < hidden; ++h) values[h] = oracle::widen(row[h]);
    return values;
  }
  const peerbus::fp8_e4m3* const row = &got.recv_x.at<peerbus::fp8_e4m3>(e, i);
  for (std::size_t group = 0; group < hidden / 128; ++group) {
    const float scale = scale_at(got.recv_x_scales, e, i, group);
    for (std::size_t h = group * 128; h < (group + 1) * 128; ++h)
      values[h] = e4m3_value(row[h], scale);
  }
  return values;
}

void expect_shape(const deep_ep::const_tensor& given, std::string_view expected,
                  std::string_view what) {
  test::expect_equal(given.describe(), expected, what);
}

void check_shapes(const deep_ep::low_latency_dispatch_result& got, const batch& from,
                  std::size_t rank) {
  const world& of = from.of;
  const std::size_t local = experts_of(of, rank).size();
  const std::size_t rows = of.ranks * of.max_tokens;
  const auto text = [](const auto&... parts) { return peerbus::detail::concat(parts...); };
  const bool fp8 = of.rows != format::bf16;
  expect_shape(
      got.recv_x,
      text(fp8 ? "float8_e4m3fn" : "bfloat16", " [", local, ", ", rows, ", ", of.hidden, "]"),
      "recv_x");
  test::expect(got.recv_x.contiguous(), "recv_x without gaps");
  expect_shape(got.recv_count, text("int32 [", local, "]"), "recv_count");
  expect_shape(got.handle.src_info, text("int32 [", local, ", ", rows, "]"), "src_info");
  expect_shape(got.handle.layout_range, text("int64 [", local, ", ", of.ranks, "]"),
               "layout_range");
  test::expect_equal(got.handle.num_max_dispatch_tokens_per_rank, of.max_tokens, "handle's B");
  test::expect_equal(got.handle.hidden, of.hidden, "handle's hidden");
  test::expect_equal(got.handle.num_experts, of.experts, "handle's experts");
  const deep_ep::const_tensor& scales = got.recv_x_scales;
  if (!fp8) return test::expect(!scales, "no scales with bf16");
  const std::size_t groups = of.hidden / 128;
  const std::size_t words = of.rows == format::ue8m0 ? (groups + 3) / 4 : groups;
  test::expect(
      scales.type() == (of.rows == format::ue8m0 ? deep_ep::dtype::int32 : deep_ep::dtype::float32),
      "dtype of scales, which are ", scales.describe());
  test::expect_equal(scales.dims(), 3U, "dims of scales");
  for (const auto& [given, expected] : {std::pair{scales.size(0), local},
                                        {scales.size(1), rows},
                                        {scales.size(2), words},
                                        {scales.stride(0), words * rows},
                                        {scales.stride(1), std::size_t{1}},
                                        {scales.stride(2), rows}})
    test::expect_equal(given, expected, "scales, which are ", scales.describe());
}

void check_rows(const deep_ep::low_latency_dispatch_result& got, const batch& from,
                std::size_t rank) {
  const auto experts = experts_of(from.of, rank);
  const std::size_t row_bytes = from.of.hidden * deep_ep::bytes_of(got.recv_x.type());
  const std::size_t rows = from.of.ranks * from.of.max_tokens;
  for (std::size_t e = 0; e < experts.size(); ++e) {
    std::size_t i = 0;
    for (std::size_t source = 0; source < from.of.ranks; ++source) {
      const auto tokens = tokens_for(from, source, experts[e]);
      const auto range =
          static_cast<std::uint64_t>(got.handle.layout_range.template at<std::int64_t>(e, source));
      test::expect_equal(range & 0xffff'ffffU, tokens.size(), "count of expert ", e, " from ",
                         source);
      test::expect_equal(range >> 32U, i, "first row of expert ", e, " from ", source);
      for (const std::size_t t : tokens) {
        const auto& expected = from.rows[source][t];
        test::expect_equal(got.handle.src_info.template at<std::int32_t>(e, i),
                           static_cast<std::int32_t>(t), "src_info of expert ", e, ", row ", i);
        const auto* const bytes =
            static_cast<const std::uint8_t*>(got.recv_x.data()) + (e * rows + i) * row_bytes;
        const auto at = std::mismatch(expected.bytes.begin(), expected.bytes.end(), bytes).first;
        test::expect(at == expected.bytes.end(), "expert ", e, ", row ", i, " from rank ", source,
                     ", token ", t, " as sent; differs at byte ", at - expected.bytes.begin());
        for (std::size_t word = 0; word < expected.scales.size(); ++word) {
          std::uint32_t given = 0;
          const std::size_t offset = e * got.recv_x_scales.stride(0) +
                                     i * got.recv_x_scales.stride(1) +
                                     word * got.recv_x_scales.stride(2);
          std::memcpy(&given,
                      static_cast<const std::uint8_t*>(got.recv_x_scales.data()) + 4 * offset, 4);
          test::expect_equal(given, expected.scales[word], "scale word ", word, " of expert ", e,
                             ", row ", i);
        }
        ++i;
      }
    }
    test::expect_equal(got.recv_count.template at<std::int32_t>(e), static_cast<std::int32_t>(i),
                       "recv_count of expert ", e);
  }
}

}  // namespace low_latency_suite
