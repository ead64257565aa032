// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>

#include <peerbus/collective/detail/call_header.hpp>
#include <peerbus/collective/reduction.hpp>

namespace peerbus::collective::detail {

/// A reduction of one element type behind a pointer, so that operations are compiled once for all
/// types and reductions. It refers to the callable, which must outlive it.
class reducer {
 public:
  /// Makes the reduction of `T` by `op`.
  template <class T, reduction<T> Op>
  [[nodiscard]] static reducer of(const Op& op) noexcept {
    reducer made;
    made.combine_ = &combine<T, Op>;
    made.callable_ = std::addressof(op);
    if constexpr (requires { std::string_view{Op::name}; })
      made.name_ = short_text<8>{Op::name};
    else
      made.name_ = short_text<8>{"custom"};
    return made;
  }

  /// Returns the name of the reduction.
  [[nodiscard]] const short_text<8>& name() const noexcept { return name_; }

  /// Reduces `elements` elements of all `sources`, in their order, to `out`. No alignment is
  /// needed. `out` may be one of the sources.
  void operator()(std::byte* out, std::span<const std::byte* const> sources,
                  std::size_t elements) const noexcept {
    combine_(callable_, out, sources, elements);
  }

 private:
  reducer() = default;

  template <class T, class Op>
  static void combine(const void* callable, std::byte* out,
                      std::span<const std::byte* const> sources, std::size_t elements) noexcept {
    using sum_type = accumulator_t<T>;
    static constexpr std::size_t block = std::max<std::size_t>(1, 4096 / sizeof(sum_type));
    const Op& op = *static_cast<const Op*>(callable);
    std::array<sum_type, block> sums;  // A block stays in the first cache; no need to clear it.
    for (std::size_t first = 0; first < elements; first += block) {
      const std::size_t count = std::min(block, elements - first);
      for (std::size_t i = 0; i < count; ++i) sums[i] = load<T>(sources[0], first + i);
      for (const std::byte* const source : sources.subspan(1))
        for (std::size_t i = 0; i < count; ++i)
          sums[i] = static_cast<sum_type>(op(sums[i], load<T>(source, first + i)));
      for (std::size_t i = 0; i < count; ++i) {
        const T value = static_cast<T>(sums[i]);
        std::memcpy(out + (first + i) * sizeof(T), &value, sizeof value);
      }
    }
  }
  template <class T>
  static accumulator_t<T> load(const std::byte* source, std::size_t index) noexcept {
    T value;
    std::memcpy(&value, source + index * sizeof(T), sizeof value);
    return static_cast<accumulator_t<T>>(value);
  }

  void (*combine_)(const void*, std::byte*, std::span<const std::byte* const>,
                   std::size_t) noexcept = nullptr;
  const void* callable_ = nullptr;
  short_text<8> name_{};
};

}  // namespace peerbus::collective::detail
