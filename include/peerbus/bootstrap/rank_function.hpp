// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <functional>
#include <type_traits>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/function_ref.hpp>

namespace peerbus {

/// A function that a rank runs. It takes the rank's bootstrap and returns nothing or an exit
/// status.
template <class F>
concept rank_function = std::invocable<F&, bootstrap&> &&
                        (std::is_void_v<std::invoke_result_t<F&, bootstrap&>> ||
                         std::convertible_to<std::invoke_result_t<F&, bootstrap&>, int>);

namespace detail {

/// A rank function whose type is erased. It returns an exit status.
using rank_body = function_ref<int(bootstrap&)>;

/// Wraps `function` so that it returns an exit status, which is 0 if `function` returns nothing.
/// The result refers to `function`.
template <rank_function F>
[[nodiscard]] auto returning_status(F& function) noexcept {
  return [&function](bootstrap& boot) -> int {
    if constexpr (std::is_void_v<std::invoke_result_t<F&, bootstrap&>>) {
      std::invoke(function, boot);
      return 0;
    } else {
      return std::invoke(function, boot);
    }
  };
}

}  // namespace detail
}  // namespace peerbus
