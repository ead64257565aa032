// SPDX-License-Identifier: MIT
#include <algorithm>
#include <array>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <random>
#include <span>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/core/align.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/kernel/group.hpp>
#include <peerbus/kernel/kernel_set.hpp>
#include <peerbus/kernel/stream.hpp>

#include "guarded.hpp"

namespace kernel_set_test {

namespace {

using peerbus::bf16;
using peerbus::kernel::group_columns;
using peerbus::kernel::kernel_set;
using peerbus::test::edge;
using peerbus::test::guarded;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

/// A length beyond two of the longest strides (256 columns) and their leftovers.
constexpr std::size_t longest = 560;

std::vector<bf16> every_value() {
  std::vector<bf16> values;
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits)
    values.push_back(bf16::from_bits(static_cast<std::uint16_t>(bits)));
  return values;
}

template <class T>
bool same_bytes(std::span<T> a, std::span<T> b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

/// Quantises `row` to `out`, which is as long.
void quantise(const kernel_set& set, std::span<const bf16> row, float inverse_scale,
              std::span<std::int8_t> out) {
  set.quantise_int8(row.data(), row.size(), inverse_scale, std::as_writable_bytes(out).data());
}

/// Quantises by the plain definition, independently of the code under test.
std::int8_t quantised(bf16 value, float inverse_scale) {
  const float product = static_cast<float>(value) * inverse_scale;
  if (product >= 127) return 127;
  if (product <= -127) return -127;
  const float below = std::floor(product);
  const float rest = product - below;  // exact, because both magnitudes are below 128
  const bool rounds_up = rest > 0.5F || (rest == 0.5F && static_cast<int>(below) % 2 != 0);
  return static_cast<std::int8_t>(static_cast<int>(below) + (rounds_up ? 1 : 0));
}

/// Sums by the plain definition, one column at a time.
bf16 summed(const std::vector<const bf16*>& rows, const std::vector<float>& weights,
            std::size_t column) {
  float sum = 0;
  for (std::size_t row = 0; row < rows.size(); ++row)
    sum = std::fma(weights[row], static_cast<float>(rows[row][column]), sum);
  return std::isnan(sum) ? bf16::from_bits(0x7fc0) : bf16{sum};
}

/// Random values: mostly moderate numbers, and some of every kind.
class random_rows {
 public:
  bf16 any() { return bf16::from_bits(static_cast<std::uint16_t>(random_())); }
  bf16 moderate() { return bf16{normal_(random_)}; }
  float weight() { return normal_(random_); }
  std::size_t below(std::size_t bound) { return random_() % bound; }

 private:
  std::mt19937 random_{20240607};
  std::normal_distribution<float> normal_;
};

}  // namespace

TEST_CASE("the scalar set comes first and the best set last") {
  const auto sets = peerbus::kernel::available();
  REQUIRE(!sets.empty());
  CHECK(std::string_view{sets.front()->name} == "scalar");
  CHECK(sets.back() == &peerbus::kernel::best());
  CHECK(peerbus::kernel::available().data() == sets.data());
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  CHECK((sets.size() >= 2) == avx2);
#endif
}

TEST_CASE("widen is exact for every value") {
  const std::vector<bf16> values = every_value();
  for (const kernel_set* set : peerbus::kernel::available()) {
    CAPTURE(set->name);
    std::vector<float> wide(values.size());
    set->widen(values.data(), values.size(), wide.data());
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < values.size(); ++i)
      wrong += std::bit_cast<std::uint32_t>(wide[i]) != static_cast<std::uint32_t>(i) << 16;
    CHECK(wrong == 0);
  }
}

TEST_CASE("narrow rounds like bf16, around every value") {
  std::vector<float> wide;
  for (std::uint32_t upper = 0; upper <= 0xffff; ++upper)
    for (const std::uint32_t lower : {0U, 1U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU})
      wide.push_back(std::bit_cast<float>(upper << 16 | lower));
  for (const kernel_set* set : peerbus::kernel::available()) {
    CAPTURE(set->name);
    std::vector<bf16> narrow(wide.size());
    set->narrow(wide.data(), wide.size(), narrow.data());
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < wide.size(); ++i) wrong += narrow[i] != bf16{wide[i]};
    CHECK(wrong == 0);
  }
}

TEST_CASE("max_magnitude_bits finds the largest at every place of every length") {
  for (const kernel_set* set : peerbus::kernel::available()) {
    CAPTURE(set->name);
    CHECK(set->max_magnitude_bits(nullptr, 0) == 0);
    for (std::size_t length = 1; length <= longest; ++length) {
      std::vector<bf16> row(length, bf16::from_bits(0x8123));
      std::size_t wrong = set->max_magnitude_bits(row.data(), length) != 0x0123;
      for (std::size_t place = 0; place < length; ++place) {
        row[place] = bf16::from_bits(0xffff);
        wrong += set->max_magnitude_bits(row.data(), length) != 0x7fff;
        row[place] = bf16::from_bits(0x0124);
        wrong += set->max_magnitude_bits(row.data(), length) != 0x0124;
        row[place] = bf16::from_bits(0x8123);
      }
      CAPTURE(length);
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("quantise_int8 rounds ties to even and clamps") {
  const std::vector<bf16> row{bf16{0.5F},   bf16{1.5F},    bf16{2.5F},   bf16{-0.5F},
                              bf16{-1.5F},  bf16{126.5F},  bf16{127.5F}, bf16{-127.5F},
                              bf16{200.0F}, bf16{-1e9F},   bf16{0.0F},   bf16{1e9F},
                              bf16{1e-40F}, bf16{-128.0F}, bf16{3.0F},   bf16{-0.0F}};
  const std::vector<std::int8_t> expected{0,   2,    2, 0,   -2, 126,  127, -127,
                                          127, -127, 0, 127, 0,  -127, 3,   0};
  // Twice and once more, so that full registers and leftovers both see them.
  std::vector<bf16> rows;
  std::vector<std::int8_t> all;
  for (int i = 0; i < 3; ++i) {
    rows.insert(rows.end(), row.begin(), row.end());
    all.insert(all.end(), expected.begin(), expected.end());
  }
  rows.pop_back();
  all.pop_back();
  for (const kernel_set* set : peerbus::kernel::available()) {
    CAPTURE(set->name);
    std::vector<std::int8_t> codes(rows.size());
    quantise(*set, rows, 1.0F, codes);
    CHECK(codes == all);
  }
}

TEST_CASE("quantise_int8 follows its definition for every value") {
  for (const float inverse :
       {1.0F, 0.5F, -1.0F, 0.0F, 127.0F / 3.0F, 127.0F / 0.7F, 1e-40F, 1e36F, FLT_MAX, FLT_MIN}) {
    std::vector<bf16> values = every_value();
    // The contract excludes products that are NaN or too large for an integer of 32 bits.
    std::erase_if(values, [&](bf16 value) {
      return !(std::abs(static_cast<float>(value) * inverse) < 0x1p31F);
    });
    std::vector<std::int8_t> expected;
    expected.reserve(values.size());
    for (const bf16 value : values) expected.push_back(quantised(value, inverse));
    for (const kernel_set* set : peerbus::kernel::available()) {
      CAPTURE(set->name);
      CAPTURE(inverse);
      std::vector<std::int8_t> codes(values.size());
      quantise(*set, values, inverse, codes);
      CHECK(codes == expected);
    }
  }
}

TEST_CASE("dequantise_int8 multiplies every code") {
  std::vector<std::int8_t> codes;
  for (int code = -128; code < 128; ++code) codes.push_back(static_cast<std::int8_t>(code));
  codes.push_back(5);
  for (const float scale :
       {1.0F, 0.3F, -2.0F, 0.0F, 1e-40F, 3e36F, infinity, not_a_number, -not_a_number}) {
    for (const kernel_set* set : peerbus::kernel::available()) {
      CAPTURE(set->name);
      CAPTURE(scale);
      std::vector<float> out(codes.size());
      set->dequantise_int8(codes.data(), codes.size(), scale, out.data());
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < codes.size(); ++i) {
        const float product = static_cast<float>(codes[i]) * scale;
        wrong += std::isnan(product) ? !std::isnan(out[i])
                                     : std::bit_cast<std::uint32_t>(product) !=
                                           std::bit_cast<std::uint32_t>(out[i]);
      }
      CHECK(wrong == 0);
      std::vector<float> reference(codes.size());
      peerbus::kernel::available().front()->dequantise_int8(codes.data(), codes.size(), scale,
                                                            reference.data());
      CHECK(same_bytes(std::span{out}, std::span{reference}));
    }
  }
}

TEST_CASE("weighted_sum fuses each product with its sum") {
  // The product is 1 + 2^-7 + 2^-23 + 2^-30. Rounding the first sum loses its last bit. The bit
  // reappears in the result only if the second product is not rounded.
  const float weight = 1.0F + 0x1p-23F;
  const std::vector<bf16> row(67, bf16{1.0F + 0x1p-7F});
  const bf16* const rows[] = {row.data(), row.data()};
  const float weights[] = {weight, -weight};
  for (const kernel_set* set : peerbus::kernel::available()) {
    CAPTURE(set->name);
    std::vector<bf16> out(row.size());
    set->weighted_sum(rows, weights, 2, row.size(), out.data());
    CHECK(out == std::vector<bf16>(row.size(), bf16{-0x1p-30F}));
  }
}

TEST_CASE("weighted_sum of no rows is +0, of NaN is one NaN") {
  for (const kernel_set* set : peerbus::kernel::available()) {
    CAPTURE(set->name);
    for (const std::size_t hidden : {std::size_t{0}, std::size_t{8}, std::size_t{200}}) {
      std::vector<bf16> out(hidden, bf16{3.0F});
      set->weighted_sum(nullptr, nullptr, 0, hidden, out.data());
      CHECK(out == std::vector<bf16>(hidden, bf16{0.0F}));

      const std::vector<bf16> first(hidden, bf16::from_bits(0xffff));
      const std::vector<bf16> second(hidden, bf16::from_bits(0x7f81));
      const bf16* const rows[] = {first.data(), second.data()};
      const float weights[] = {-not_a_number, 1.0F};
      set->weighted_sum(rows, weights, 2, hidden, out.data());
      CHECK(out == std::vector<bf16>(hidden, bf16::from_bits(0x7fc0)));

      const std::vector<bf16> large(hidden, bf16{3e38F});
      const bf16* const overflowing[] = {large.data(), large.data()};
      const float ones[] = {-1.0F, -1.0F};
      set->weighted_sum(overflowing, ones, 2, hidden, out.data());
      CHECK(out == std::vector<bf16>(hidden, bf16{-infinity}));
    }
  }
}

TEST_CASE("weighted_sum keeps denormals") {
  const std::vector<bf16> row(77, bf16::from_bits(0x0003));
  const bf16* const rows[] = {row.data()};
  const float weight = 1.0F;
  for (const kernel_set* set : peerbus::kernel::available()) {
    CAPTURE(set->name);
    std::vector<bf16> out(row.size());
    set->weighted_sum(rows, &weight, 1, row.size(), out.data());
    CHECK(out == row);
  }
}

TEST_CASE("weighted_sum follows its definition for every value, row count and length") {
  random_rows random;
  const std::vector<bf16> values = every_value();
  for (const std::size_t row_count : {1U, 2U, 3U, 8U, 31U, 32U}) {
    // Every value once, then rows of moderate numbers so that the sums do not all end as NaN.
    for (const std::size_t hidden : {values.size(), std::size_t{7168}, std::size_t{1},
                                     std::size_t{17}, std::size_t{63}, std::size_t{129}}) {
      std::vector<std::vector<bf16>> storage(row_count);
      std::vector<const bf16*> rows;
      std::vector<float> weights;
      for (std::size_t row = 0; row < row_count; ++row) {
        // The rows begin at different offsets within a cache line.
        const std::size_t offset = random.below(32);
        storage[row].resize(offset + hidden);
        for (std::size_t i = 0; i < hidden; ++i)
          storage[row][offset + i] = row == 0 && hidden == values.size() ? values[i]
                                     : random.below(1000) == 0           ? random.any()
                                                                         : random.moderate();
        rows.push_back(storage[row].data() + offset);
        weights.push_back(random.weight());
      }
      std::vector<bf16> expected;
      expected.reserve(hidden);
      for (std::size_t i = 0; i < hidden; ++i) expected.push_back(summed(rows, weights, i));
      for (const kernel_set* set : peerbus::kernel::available()) {
        CAPTURE(set->name);
        CAPTURE(row_count);
        CAPTURE(hidden);
        std::vector<bf16> out(hidden + 1);
        set->weighted_sum(rows.data(), weights.data(), row_count, hidden, out.data() + 1);
        CHECK(same_bytes(std::span{out}.subspan(1), std::span{expected}));
        // In f32, before it is rounded; NaN stays NaN.
        std::vector<float> sums(hidden + 2, -1.0F);
        set->weighted_sum_f32(rows.data(), weights.data(), row_count, hidden, sums.data() + 1);
        CHECK((sums.front() == -1.0F && sums.back() == -1.0F));
        bool is_equal = true;
        for (std::size_t i = 0; i < hidden; ++i)
          is_equal =
              is_equal && (std::isnan(sums[i + 1]) ? expected[i].bits == 0x7fc0
                                                   : bf16{sums[i + 1]}.bits == expected[i].bits);
        CHECK(is_equal);
      }
    }
  }
}

TEST_CASE("no kernel touches memory outside its rows, and all sets agree at every length") {
  random_rows random;
  const kernel_set& reference = *peerbus::kernel::available().front();
  for (const edge side : {edge::front, edge::back}) {
    for (std::size_t length = 0; length <= longest; ++length) {
      const guarded<bf16> first{length, side};
      const guarded<bf16> second{length, side};
      const guarded<float> wide{length, side};
      const guarded<std::int8_t> codes{length, side};
      for (std::size_t i = 0; i < length; ++i) {
        first.all()[i] = random.below(8) == 0 ? random.any() : random.moderate();
        second.all()[i] = random.moderate();
        wide.all()[i] = random.weight();
        codes.all()[i] = static_cast<std::int8_t>(random.below(256));
      }
      const guarded<const bf16*> rows{2, side};
      rows.all()[0] = first.data();
      rows.all()[1] = second.data();
      const guarded<float> weights{2, side};
      weights.all()[0] = 0.3F;
      weights.all()[1] = -0.7F;

      std::vector<bf16> sums(length);
      std::vector<bf16> narrow(length);
      std::vector<float> widened(length);
      std::vector<float> products(length);
      std::vector<std::int8_t> quantised_codes(length);
      reference.weighted_sum(rows.data(), weights.data(), 2, length, sums.data());
      reference.narrow(wide.data(), length, narrow.data());
      reference.widen(first.data(), length, widened.data());
      reference.dequantise_int8(codes.data(), length, 0.1F, products.data());
      quantise(reference, second.all(), 50.0F, quantised_codes);

      for (const kernel_set* set : peerbus::kernel::available()) {
        const guarded<bf16> out_sums{length, side};
        const guarded<bf16> out_narrow{length, side};
        const guarded<float> out_wide{length, side};
        const guarded<float> out_products{length, side};
        const guarded<std::int8_t> out_codes{length, side};
        set->weighted_sum(rows.data(), weights.data(), 2, length, out_sums.data());
        set->narrow(wide.data(), length, out_narrow.data());
        set->widen(first.data(), length, out_wide.data());
        set->dequantise_int8(codes.data(), length, 0.1F, out_products.data());
        quantise(*set, second.all(), 50.0F, out_codes.all());
        CAPTURE(set->name);
        CAPTURE(length);
        CHECK(set->max_magnitude_bits(first.data(), length) ==
              reference.max_magnitude_bits(first.data(), length));
        CHECK(same_bytes(out_sums.all(), std::span{sums}));
        CHECK(same_bytes(out_narrow.all(), std::span{narrow}));
        CHECK(same_bytes(out_wide.all(), std::span{widened}));
        CHECK(same_bytes(out_products.all(), std::span{products}));
        CHECK(same_bytes(out_codes.all(), std::span{quantised_codes}));
        CHECK(out_sums.untouched());
        CHECK(out_narrow.untouched());
        CHECK(out_wide.untouched());
        CHECK(out_products.untouched());
        CHECK(out_codes.untouched());
      }
    }
  }
}

TEST_CASE("stream copies any number of bytes to any place in a line, and nothing else") {
  for (const kernel_set* set : peerbus::kernel::available()) {
    CAPTURE(set->name);
    for (const edge side : {edge::front, edge::back}) {
      for (std::size_t length = 0; length <= 5 * peerbus::cache_line_bytes; ++length) {
        const guarded<std::byte> source{length, side};
        for (std::size_t i = 0; i < length; ++i) source.all()[i] = static_cast<std::byte>(i * 7);
        const guarded<std::byte> out{length, side};
        peerbus::kernel::stream(*set, out.data(), source.data(), length);
        peerbus::kernel::fence_streams();
        CAPTURE(length);
        CHECK(same_bytes(out.all(), source.all()));
        CHECK(out.untouched());
      }
    }
    std::vector<std::byte> source(300);
    for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i * 11);
    std::size_t wrong = 0;
    for (std::size_t from = 0; from < 4; ++from)
      for (std::size_t place = 0; place < peerbus::cache_line_bytes; ++place) {
        alignas(peerbus::cache_line_bytes) std::array<std::byte, 400> out{};
        const std::size_t length = source.size() - from;
        peerbus::kernel::stream(*set, out.data() + place, source.data() + from, length);
        peerbus::kernel::fence_streams();
        std::array<std::byte, 400> expected{};
        std::copy_n(source.data() + from, length, expected.data() + place);
        wrong += out != expected;
      }
    CHECK(wrong == 0);
  }
}

TEST_CASE("log2_magnitudes: every value, against the library's logarithm") {
  const std::vector<bf16> values = every_value();
  for (const kernel_set* set : peerbus::kernel::available()) {
    CAPTURE(set->name);
    for (std::size_t begin = 0; begin < values.size(); begin += group_columns) {
      std::array<float, group_columns> logs;
      std::array<float, group_columns> reference;
      set->log2_magnitudes(values.data() + begin, logs.data());
      peerbus::kernel::available().front()->log2_magnitudes(values.data() + begin,
                                                            reference.data());
      REQUIRE(same_bytes(std::span<float>{logs}, std::span<float>{reference}));
      for (std::size_t i = 0; i < group_columns; ++i) {
        const float magnitude = std::fabs(static_cast<float>(values[begin + i]));
        const double exact = std::log2(static_cast<double>(magnitude));
        if (!std::isfinite(magnitude))
          CHECK(logs[i] >= 128);
        else if (magnitude == 0)
          CHECK(logs[i] == -infinity);
        else
          CHECK(std::abs(logs[i] - exact) <= 1e-7 + std::abs(exact) * 0x1p-23);
      }
    }
  }
}

TEST_CASE("log_codes and log_values: every set as the plain definition") {
  std::mt19937 random{5};
  std::uniform_real_distribution<float> uniform;
  for (std::size_t round = 0; round < 200; ++round) {
    const float lowest = -199 * uniform(random);
    const float step = -lowest / 510 * std::max(uniform(random), 0.01F);  // Places fit 16 bits.
    std::array<float, group_columns> logs;
    std::array<std::uint16_t, group_columns> given;
    for (std::size_t i = 0; i < group_columns; ++i) {
      logs[i] = i == 3 ? -infinity : lowest * 1.1F * uniform(random);
      given[i] = static_cast<std::uint16_t>(random());
    }
    for (const kernel_set* set : peerbus::kernel::available()) {
      CAPTURE(set->name);
      std::array<std::uint16_t, group_columns> codes;
      std::array<bf16, group_columns> values;
      const float per_step = 1 / std::max(step, 1e-3F);
      set->log_codes(logs.data(), per_step, -lowest * per_step, codes.data());
      set->log_values(given.data(), step, lowest, values.data());
      for (std::size_t i = 0; i < group_columns; ++i) {
        const float place = std::fma(logs[i], per_step, -lowest * per_step);
        CHECK(codes[i] == static_cast<std::uint16_t>(std::max(std::floor(place), 0.0F)));
        const int code = given[i] % 512;
        const float power = std::fma(static_cast<float>(code - 1), step, lowest);
        const bf16 expected{code == 0 ? 0 : static_cast<float>(std::exp2(double{power}))};
        const auto bits = static_cast<std::uint16_t>(expected.bits | (given[i] & 0x200U) << 6U);
        // The approximation may fall on the other side of a tie.
        CHECK(std::abs(int{values[i].bits} - int{bits}) <= 1);
      }
    }
  }
}

}  // namespace kernel_set_test
