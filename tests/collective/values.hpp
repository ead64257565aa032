// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include <peerbus/core/bf16.hpp>
#include <peerbus/core/rank.hpp>

#include "support/ranks.hpp"

/// What ranks contribute to operations, and what these must give, by plain loops.
namespace collective_suite {

using peerbus::bf16;
using peerbus::rank_id;

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

/// The `count` elements from `first` on that `rank` contributes. values.cpp has the instances,
/// optimised, because tests compute little else.
template <class T>
std::vector<T> values(std::size_t rank, std::size_t count, std::uint64_t salt,
                      std::size_t first = 0);

/// What a rank must get for element `index` of all ranks, reduced in their order.
template <class T, class Op>
T reduced(std::size_t ranks, std::size_t index, std::uint64_t salt, Op op) {
  using wide = std::conditional_t<std::is_same_v<T, bf16>, float, T>;
  auto sum = static_cast<wide>(value<T>(0, index, salt));
  for (std::size_t r = 1; r < ranks; ++r)
    sum = static_cast<wide>(op(sum, static_cast<wide>(value<T>(r, index, salt))));
  return static_cast<T>(sum);
}

/// What a rank must get for the `count` elements from `first` on. Instances are in values.cpp.
template <class T, class Op>
std::vector<T> all_reduced(std::size_t ranks, std::size_t count, std::uint64_t salt, Op op,
                           std::size_t first = 0);

template <class T>
void expect_same(std::span<const T> given, const std::vector<T>& expected, std::string_view what) {
  test::expect_equal(given.size(), expected.size(), what, ": size");
  if (given.empty() || std::memcmp(given.data(), expected.data(), given.size_bytes()) == 0) return;
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
  for (std::size_t r = 0; r < ranks; ++r) {
    const std::vector<T> theirs = values<T>(r, count, salt, self * count);
    made.insert(made.end(), theirs.begin(), theirs.end());
  }
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

}  // namespace collective_suite
