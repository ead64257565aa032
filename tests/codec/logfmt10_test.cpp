// SPDX-License-Identifier: MIT
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/codec/logfmt10.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/kernel/group.hpp>

namespace logfmt10_test {

namespace {

namespace logfmt10 = peerbus::codec::logfmt10;
using peerbus::bf16;
using peerbus::kernel::group_columns;

constexpr float infinity = std::numeric_limits<float>::infinity();

/// A row as it travels.
struct coded {
  std::vector<logfmt10::head> heads;
  std::vector<std::byte> bytes;
};

coded encode(std::span<const bf16> row, std::byte before = std::byte{0x5a}) {
  coded made{std::vector<logfmt10::head>(logfmt10::groups(row.size())),
             std::vector<std::byte>(2 * row.size(), before)};
  made.bytes.resize(logfmt10::encode(row, made.heads, made.bytes.data()));
  return made;
}

std::vector<bf16> decode(const coded& row) {
  std::array<logfmt10::reader, 1> readers{logfmt10::reader{row.heads, row.bytes.data()}};
  bf16 scratch[1][group_columns];
  std::vector<bf16> values;
  for (std::size_t g = 0; g < row.heads.size(); ++g) {
    const bf16* group = nullptr;
    logfmt10::next_groups(readers, scratch, &group);
    values.insert(values.end(), group, group + group_columns);
  }
  return values;
}

std::vector<bf16> random_row(std::size_t hidden, float size, unsigned seed) {
  std::mt19937 random{seed};
  std::normal_distribution<float> normal;
  std::vector<bf16> row(hidden);
  for (bf16& value : row) value = bf16{std::clamp(normal(random) * size, -0.99F, 0.99F)};
  return row;
}

double magnitude(bf16 value) { return std::abs(static_cast<double>(static_cast<float>(value))); }

/// Checks a coded group against the definition of the format, in double.
void check_group(std::span<const bf16> row, std::span<const bf16> decoded) {
  double largest = 0;
  double smallest = infinity;
  for (const bf16 value : row) {
    largest = std::max(largest, magnitude(value));
    smallest = std::min(smallest, magnitude(value));
  }
  const double high = std::log2(largest);
  const double low = std::max(smallest == 0 ? -1e9 : std::log2(smallest), high - 32);
  const double step = (high - low) / 510;
  for (std::size_t i = 0; i < row.size(); ++i) {
    CAPTURE(i);
    const double given = magnitude(row[i]);
    const double got = magnitude(decoded[i]);
    CHECK(std::signbit(static_cast<float>(row[i])) == std::signbit(static_cast<float>(decoded[i])));
    if (given < std::exp2(low - step)) {
      CHECK(got <= std::exp2(low) * 1.004);
    } else {
      // Half a step up or down in size, and the rounding to bf16, whose smallest unit is 2^-133.
      const double most =
          (std::exp2(step) - 1) * 0.51 * std::max(given, got) + given / 256 + 0x1p-133;
      CHECK(std::abs(got - given) <= most);
    }
  }
}

}  // namespace

TEST_CASE("codes take 10 bits, chunks that cannot be coded 16") {
  for (const std::size_t hidden : {128U, 384U, 512U, 1536U, 1024U, 7168U}) {
    CAPTURE(hidden);
    std::vector<bf16> row = random_row(hidden, 0.1F, 1);
    const coded all = encode(row);
    CHECK(all.bytes.size() == hidden * 10 / 8);
    CHECK(logfmt10::row_bytes(all.heads) == all.bytes.size());
    CHECK(logfmt10::head_bytes(hidden) == hidden / 128 * 4);
    // One value of 1 or more leaves its chunk as it is.
    row.back() = bf16{1.0F};
    const coded some = encode(row);
    const std::size_t chunk = hidden % 1024 == 0 ? 1024 : hidden % 512 == 0 ? 512 : 128;
    CHECK(some.bytes.size() == (hidden - chunk) * 10 / 8 + chunk * 2);
    CHECK(logfmt10::row_bytes(some.heads) == some.bytes.size());
    const auto decoded = decode(some);
    CHECK(std::equal(row.end() - static_cast<std::ptrdiff_t>(chunk), row.end(),
                     decoded.end() - static_cast<std::ptrdiff_t>(chunk)));
  }
}

TEST_CASE("values come back within half a step, and on average as large") {
  for (const float size : {0.3F, 0.01F, 1e-9F, 1e-30F, 1e-38F}) {
    CAPTURE(size);
    double bias = 0;
    double sum = 0;
    for (unsigned seed = 0; seed < 20; ++seed) {
      auto row = random_row(256, size, seed);
      if (seed % 3 == 1) row[7] = bf16{0.0F};
      if (seed % 3 == 2) row[9] = bf16{-0x1p-132F};
      const auto decoded = decode(encode(row));
      for (std::size_t g = 0; g < 256; g += group_columns)
        check_group(std::span{row}.subspan(g, group_columns),
                    std::span{decoded}.subspan(g, group_columns));
      for (std::size_t i = 0; i < row.size(); ++i) {
        bias += magnitude(decoded[i]) - magnitude(row[i]);
        sum += magnitude(row[i]);
      }
    }
    CHECK(std::abs(bias) < 2e-3 * sum);
  }
}

TEST_CASE("a group that is no number, all equal, or all zero is not touched") {
  for (const float value : {0.0F, -0.0F, 0.25F, 3.0F, infinity, -infinity, std::nanf("")}) {
    CAPTURE(value);
    std::vector<bf16> row(128, bf16{value});
    CHECK(decode(encode(row)) == row);
    row = random_row(128, 0.1F, 3);
    row[100] = bf16{value};
    const auto decoded = decode(encode(row));
    if (std::abs(value) < 1)
      CHECK(magnitude(decoded[100]) == doctest::Approx(std::abs(value)).epsilon(0.03));
    else
      CHECK(decoded == row);
  }
}

TEST_CASE("the bytes depend on the row alone, and so do the values of many rows at once") {
  std::vector<std::vector<bf16>> rows;
  std::vector<coded> all;
  for (unsigned i = 0; i < logfmt10::most_rows; ++i) {
    rows.push_back(random_row(384, i % 5 == 0 ? 5.0F : 0.2F, i));
    if (i % 5 == 0) rows.back()[i] = bf16{2.0F};
    all.push_back(encode(rows.back()));
    CHECK(encode(rows.back(), std::byte{0}).bytes == all.back().bytes);
  }
  std::vector<logfmt10::reader> readers;
  for (const coded& row : all) readers.emplace_back(row.heads, row.bytes.data());
  bf16 scratch[logfmt10::most_rows][group_columns];
  const bf16* values[logfmt10::most_rows];
  for (std::size_t g = 0; g < 3; ++g) {
    logfmt10::next_groups(readers, scratch, values);
    for (std::size_t i = 0; i < all.size(); ++i)
      CHECK(std::memcmp(values[i], decode(all[i]).data() + g * group_columns,
                        group_columns * sizeof(bf16)) == 0);
  }
}

}  // namespace logfmt10_test
