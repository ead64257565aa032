// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <memory>
#include <type_traits>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus::detail {

/// The type of a call's result that may be returned as `Result`. Every type may as void.
template <class Given, class Result>
concept gives = std::is_void_v<Result> || std::convertible_to<Given, Result>;

template <class Signature>
class function_ref;

/// A reference to a callable of any type that `Signature` fits, so that a function which takes it
/// is compiled only once. It does not own the callable, which must outlive it.
/// Cost: a call goes through a pointer. No allocation.
template <class Result, class... Args>
class function_ref<Result(Args...)> {
 public:
  // A requires-expression takes a compiler less than `std::is_invocable_r`, for every callable.
  template <class F>
    requires(!std::same_as<std::remove_cvref_t<F>, function_ref> &&
             requires(F& callable, Args... args) {
               { callable(static_cast<Args>(args)...) } -> detail::gives<Result>;
             })
  explicit(false) function_ref(F&& callable) noexcept
      : callable_{const_cast<void*>(static_cast<const void*>(std::addressof(callable)))},
        call_{[](void* erased, Args... args) -> Result {
          return static_cast<Result>(
              (*static_cast<std::remove_reference_t<F>*>(erased))(static_cast<Args>(args)...));
        }} {}

  Result operator()(Args... args) const { return call_(callable_, static_cast<Args>(args)...); }

 private:
  void* callable_;
  Result (*call_)(void*, Args...);
};

}  // namespace peerbus::detail
