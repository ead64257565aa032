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
    std::string_view name = "custom";
    if constexpr (requires { std::string_view{Op::name}; }) name = Op::name;
    return {name, std::addressof(op), &combine<T, Op>};
  }

  /// The function that reduces: `reduce(callable, out, sources, first, elements)`, as `part` does.
  using function = void(const void* callable, std::byte* out,
                        std::span<const std::byte* const> sources, std::size_t first,
                        std::size_t elements) noexcept;

  /// Makes a reduction by the function `reduce`, which gets `callable`.
  reducer(std::string_view name, const void* callable, function* reduce) noexcept
      : combine_{reduce}, callable_{callable}, name_{short_text<8>{name}} {}

  /// Makes an empty reduction, for operations that reduce nothing.
  reducer() noexcept = default;

  /// Returns the same reduction with `copy` as its callable.
  [[nodiscard]] reducer by(const void* copy) const noexcept {
    reducer made = *this;
    made.callable_ = copy;
    return made;
  }

  /// Returns the name of the reduction.
  [[nodiscard]] const short_text<8>& name() const noexcept { return name_; }

  /// Reduces `elements` elements of all `sources`, in their order, to `out`. No alignment is
  /// needed. `out` may be one of the sources.
  void operator()(std::byte* out, std::span<const std::byte* const> sources,
                  std::size_t elements) const noexcept {
    combine_(callable_, out, sources, 0, elements);
  }
  /// Reduces `elements` elements of all `sources` to `out`, each from its element `first` on.
  void part(std::byte* out, std::span<const std::byte* const> sources, std::size_t first,
            std::size_t elements) const noexcept {
    combine_(callable_, out, sources, first, elements);
  }

 private:
  template <class T, class Op>
  static void combine(const void* callable, std::byte* out,
                      std::span<const std::byte* const> sources, std::size_t first,
                      std::size_t elements) noexcept {
    constexpr std::size_t tile = tile_of<T>;
    const Op& op = *static_cast<const Op*>(callable);
    const std::size_t end = first + elements;
    for (; end - first >= tile; first += tile)
      combine_tile<T>(op, out, sources, first, [] { return tile_of<T>; });
    if (first != end)
      combine_tile<T>(op, out, sources, first, [rest = end - first] { return rest; });
  }

  /// The number of elements that are reduced together. They stay in the first cache and fit on the
  /// stack.
  template <class T>
  static constexpr std::size_t tile_of =
      std::clamp<std::size_t>(4096 / sizeof(accumulator_t<T>), 1, 128);

  /// Reduces `count()` elements, which must be no more than `tile_of<T>`. Compilers make vector
  /// code at their usual level of optimisation only if the count is a constant and sums cannot lie
  /// in `out`.
  template <class T, class Op, class Count>
  static void combine_tile(const Op& op, std::byte* out, std::span<const std::byte* const> sources,
                           std::size_t first, const Count& count) noexcept {
    using sum_type = accumulator_t<T>;
    std::array<sum_type, tile_of<T>> sums;  // No need to clear it.
    const std::byte* const lowest = sources[0];
    if (sources.size() == 1)
      for (std::size_t i = 0; i < count(); ++i) sums[i] = load<T>(lowest, first + i);
    else
      for (std::size_t i = 0; i < count(); ++i)
        sums[i] =
            static_cast<sum_type>(op(load<T>(lowest, first + i), load<T>(sources[1], first + i)));
    for (std::size_t s = 2; s < sources.size(); ++s) {
      const std::byte* const source = sources[s];
      for (std::size_t i = 0; i < count(); ++i)
        sums[i] = static_cast<sum_type>(op(sums[i], load<T>(source, first + i)));
    }
    for (std::size_t i = 0; i < count(); ++i) {
      const T value = static_cast<T>(sums[i]);
      std::memcpy(out + (first + i) * sizeof(T), &value, sizeof value);
    }
  }
  template <class T>
  static accumulator_t<T> load(const std::byte* source, std::size_t index) noexcept {
    T value;
    std::memcpy(&value, source + index * sizeof(T), sizeof value);
    return static_cast<accumulator_t<T>>(value);
  }

  function* combine_ = nullptr;
  const void* callable_ = nullptr;
  short_text<8> name_;
};

}  // namespace peerbus::collective::detail
