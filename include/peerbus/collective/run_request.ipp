// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/collective/detail/call_rounds.hpp>
#include <peerbus/collective/detail/carry_out.hpp>
#include <peerbus/collective/detail/pattern.hpp>
#include <peerbus/collective/detail/reducer.hpp>
#include <peerbus/collective/reduction.hpp>
#include <peerbus/collective/run_request.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::collective {

namespace detail {

/// Returns the reduction by `Op` of elements of a type that can be reduced.
template <class Op>
reducer reducer_by(const element_type& element) noexcept {
  static constexpr Op op{};  // The reducer refers to it.
  if (element == element_type::of<float>()) return reducer::of<float>(op);
  if (element == element_type::of<double>()) return reducer::of<double>(op);
  if (element == element_type::of<bf16>()) return reducer::of<bf16>(op);
  if (element == element_type::of<std::int32_t>()) return reducer::of<std::int32_t>(op);
  if (element == element_type::of<std::int64_t>()) return reducer::of<std::int64_t>(op);
  return reducer::of<std::uint8_t>(op);
}

/// Returns the reduction of a request, none for an operation that reduces nothing. Refuses elements
/// that cannot be reduced.
PEERBUS_INLINE reducer reducer_of(team& team, const request& asked, const call_options& options) {
  const pattern& kind = pattern_of(asked.what);
  if (!kind.reduces) return {};
  if (!can_reduce(asked.element))
    refuse(team, kind.name, asked.element,
           concat("elements to reduce of type ", asked.element.name.view(),
                  ", expected f32, f64, bf16, i32, i64 or u8"),
           options);
  switch (asked.reduction) {
    case reduction_kind::sum: return reducer_by<sum>(asked.element);
    case reduction_kind::product: return reducer_by<product>(asked.element);
    case reduction_kind::minimum: return reducer_by<minimum>(asked.element);
    case reduction_kind::maximum: break;
  }
  return reducer_by<maximum>(asked.element);
}

/// Returns a request without what its operation does not use.
PEERBUS_INLINE request used_of(const request& asked) noexcept {
  request used = asked;
  if (asked.what != operation_kind::all_reduce_add) {
    used.residual.reset();
  } else {
    used.residual = asked.residual.value_or(std::span<const std::byte>{});
    used.input_in = {};  // The sum with a residual takes operands anywhere.
  }
  return used;
}

}  // namespace detail

PEERBUS_INLINE bool can_reduce(const element_type& element) noexcept {
  return element == element_type::of<float>() || element == element_type::of<double>() ||
         element == element_type::of<bf16>() || element == element_type::of<std::int32_t>() ||
         element == element_type::of<std::int64_t>() || element == element_type::of<std::uint8_t>();
}

PEERBUS_INLINE void run(team& team, const request& asked, const call_options& options) {
  detail::carry_out(team, detail::used_of(asked), detail::reducer_of(team, asked, options),
                    options);
}

PEERBUS_INLINE pending start(team& team, const request& asked, const call_options& options) {
  const detail::reducer reduce = detail::reducer_of(team, asked, options);
  const request used = detail::used_of(asked);
  if (used.residual) return detail::start_add(team, used, reduce, options);
  return detail::start(team, used, {reduce, sum{}}, options);  // The reductions have no state.
}

PEERBUS_INLINE void refuse(team& team, std::string_view operation, const element_type& element,
                           const std::string& objection, const call_options& options) {
  // Tells the other ranks, and throws.
  detail::call_rounds refused{
      team, detail::call_header::of(operation, element, 0), {}, options, objection};
  static_cast<void>(refused.first_round([] {}));
  throw error{errc::invalid_argument, objection};
}

}  // namespace peerbus::collective
