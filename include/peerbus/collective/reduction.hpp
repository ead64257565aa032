// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <string_view>
#include <type_traits>

#include <peerbus/core/bf16.hpp>

namespace peerbus::collective {

namespace detail {
template <class T>
struct accumulator {
  using type = T;
};
template <>
struct accumulator<bf16> {
  using type = float;
};

/// The unsigned type in which integers of type `T` wrap around: `unsigned long long`, or the
/// unsigned type of `T` if `T` is wider, such as `__int128`.
template <class T, bool IsWider = (sizeof(T) > sizeof(unsigned long long))>
struct wrapping {
  using type = unsigned long long;
};
template <class T>
struct wrapping<T, true> {
  using type = std::make_unsigned_t<T>;
};
template <class T>
using wrapping_t = typename wrapping<T>::type;
}  // namespace detail

/// The type in which elements of `T` are reduced: `float` for bf16, otherwise `T`. The result is
/// converted to `T` once, after the elements of all ranks are reduced.
template <class T>
using accumulator_t = typename detail::accumulator<std::remove_cv_t<T>>::type;

/// A callable that reduces two elements to one: `Op{}(a, b)` of two `accumulator_t<T>` returns an
/// `accumulator_t<T>`. It must not throw, because peers would wait for the rank that throws; a
/// lambda therefore needs `noexcept`. It must be the same on all ranks, which is checked only for
/// `sum`, `product`, `minimum` and `maximum`. A call may reduce in parts of any size.
template <class Op, class T>
concept reduction =
    std::is_trivially_copyable_v<T> && std::default_initializable<accumulator_t<T>> &&
    std::is_nothrow_invocable_r_v<accumulator_t<T>, const Op&, accumulator_t<T>, accumulator_t<T>>;

/// The reduction that adds elements. Integers wrap around. If a sum is NaN, its sign and payload
/// are unspecified, and may differ between ranks.
struct sum {
  static constexpr std::string_view name = "sum";  ///< the name in errors
  /// Returns `a` + `b`.
  template <class T>
  constexpr T operator()(T a, T b) const noexcept {
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(static_cast<detail::wrapping_t<T>>(a) +
                            static_cast<detail::wrapping_t<T>>(b));
    else
      return a + b;
  }
};

/// The reduction that multiplies elements. Integers wrap around. If a product is NaN, its sign and
/// payload are unspecified, and may differ between ranks.
struct product {
  static constexpr std::string_view name = "product";  ///< the name in errors
  /// Returns `a` x `b`.
  template <class T>
  constexpr T operator()(T a, T b) const noexcept {
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(static_cast<detail::wrapping_t<T>>(a) *
                            static_cast<detail::wrapping_t<T>>(b));
    else
      return a * b;
  }
};

/// The reduction that takes the smaller element. If an element is NaN, takes that of the lower
/// rank.
struct minimum {
  static constexpr std::string_view name = "min";  ///< the name in errors
  /// Returns the smaller of `a` and `b`, or `a` if neither is smaller.
  template <class T>
  constexpr T operator()(T a, T b) const noexcept {
    return b < a ? b : a;
  }
};

/// The reduction that takes the greater element. If an element is NaN, takes that of the lower
/// rank.
struct maximum {
  static constexpr std::string_view name = "max";  ///< the name in errors
  /// Returns the greater of `a` and `b`, or `a` if neither is greater.
  template <class T>
  constexpr T operator()(T a, T b) const noexcept {
    return a < b ? b : a;
  }
};

}  // namespace peerbus::collective
