// SPDX-License-Identifier: MIT
#pragma once

#include <type_traits>
#include <utility>

#include <peerbus/collective/all_gather.hpp>
#include <peerbus/collective/all_gather_v.hpp>
#include <peerbus/collective/all_reduce.hpp>
#include <peerbus/collective/all_reduce_add.hpp>
#include <peerbus/collective/all_to_all.hpp>
#include <peerbus/collective/all_to_all_v.hpp>
#include <peerbus/collective/broadcast.hpp>
#include <peerbus/collective/detail/by_lanes.hpp>
#include <peerbus/collective/detail/call.hpp>
#include <peerbus/collective/detail/operands.hpp>
#include <peerbus/collective/detail/operation.hpp>
#include <peerbus/collective/detail/reducer.hpp>
#include <peerbus/collective/gather.hpp>
#include <peerbus/collective/gather_v.hpp>
#include <peerbus/collective/reduce.hpp>
#include <peerbus/collective/reduce_scatter.hpp>
#include <peerbus/collective/reduce_scatter_v.hpp>
#include <peerbus/collective/reduction.hpp>
#include <peerbus/collective/request.hpp>
#include <peerbus/collective/scatter.hpp>
#include <peerbus/collective/scatter_v.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::collective {

namespace detail {

/// The name of each `operation_kind`, as in errors.
inline constexpr const char* request_names[] = {
    "broadcast",  "gather",         "gather_v",       "scatter",         "scatter_v",
    "all_gather", "all_gather_v",   "all_to_all",     "all_to_all_v",    "reduce",
    "all_reduce", "all_reduce_add", "reduce_scatter", "reduce_scatter_v"};

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

PEERBUS_INLINE bool reduces(operation_kind what) noexcept { return what >= operation_kind::reduce; }

/// Returns the reduction of a request, none for an operation that reduces nothing. Refuses elements
/// that cannot be reduced.
PEERBUS_INLINE reducer reducer_of(team& on, const request& asked, const call_options& options) {
  if (!reduces(asked.what)) return {};
  if (!can_reduce(asked.element))
    refuse(on, request_names[static_cast<std::size_t>(asked.what)], asked.element,
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

/// Begins the operation of a request. `reduce` is its reduction, if it has one.
PEERBUS_INLINE operation begin(team& on, const request& asked, const operands& given,
                               const reducer& reduce, const call_options& options) {
  switch (asked.what) {
    case operation_kind::broadcast: return broadcast_bytes(on, given, asked.root, options);
    case operation_kind::gather: return gather_bytes(on, given, asked.root, options);
    case operation_kind::gather_v:
      return gather_v_bytes(on, given, asked.parts, asked.root, options);
    case operation_kind::scatter: return scatter_bytes(on, given, asked.root, options);
    case operation_kind::scatter_v:
      return scatter_v_bytes(on, given, asked.parts, asked.root, options);
    case operation_kind::all_gather: return all_gather_bytes(on, given, options);
    case operation_kind::all_gather_v: return all_gather_v_bytes(on, given, asked.parts, options);
    case operation_kind::all_to_all: return all_to_all_bytes(on, given, options);
    case operation_kind::all_to_all_v:
      return all_to_all_v_bytes(on, given, asked.parts, asked.received_parts, options);
    case operation_kind::reduce: return reduce_bytes(on, given, reduce, asked.root, options);
    case operation_kind::all_reduce:
    case operation_kind::all_reduce_add: return all_reduce_bytes(on, given, reduce, options);
    case operation_kind::reduce_scatter: return reduce_scatter_bytes(on, given, reduce, options);
    case operation_kind::reduce_scatter_v: break;
  }
  return reduce_scatter_v_bytes(on, given, asked.parts, reduce, options);
}

PEERBUS_INLINE operands operands_of_request(const request& asked) noexcept {
  operands given{asked.element, asked.input, asked.output, asked.input_in, {}};
  if (asked.what == operation_kind::all_reduce_add) {
    given.residual = asked.residual;
    given.input_in = {};  // The sum with a residual takes operands anywhere.
  }
  return given;
}

}  // namespace detail

PEERBUS_INLINE bool can_reduce(const element_type& element) noexcept {
  return element == element_type::of<float>() || element == element_type::of<double>() ||
         element == element_type::of<bf16>() || element == element_type::of<std::int32_t>() ||
         element == element_type::of<std::int64_t>() || element == element_type::of<std::uint8_t>();
}

PEERBUS_INLINE void run(team& on, const request& asked, const call_options& options) {
  const detail::operands given = detail::operands_of_request(asked);
  const auto name = detail::request_names[static_cast<std::size_t>(asked.what)];
  detail::by_lanes(on, name, options, [&] {
    const detail::reducer reduce = detail::reducer_of(on, asked, options);
    if (asked.what != operation_kind::all_reduce_add)
      return detail::begin(on, asked, given, reduce, options).run(given, reduce);
    const detail::sum_with_residual fused{on, reduce, given};
    detail::begin(on, asked, given, fused.reduce(), options).run(given, fused.reduce());
  });
}

PEERBUS_INLINE pending start(team& on, const request& asked, const call_options& options) {
  const detail::operands given = detail::operands_of_request(asked);
  const detail::reducer reduce = detail::reducer_of(on, asked, options);
  if (asked.what != operation_kind::all_reduce_add)  // The reductions have no state.
    return {detail::begin(on, asked, given, reduce, options), given,
            detail::kept_reducer{reduce, sum{}}};
  const detail::sum_with_residual fused{on, reduce, given};
  return {detail::begin(on, asked, given, fused.reduce(), options), given,
          detail::kept_reducer{fused.reduce(), fused}};
}

PEERBUS_INLINE void refuse(team& on, std::string_view operation, const element_type& element,
                           const std::string& objection, const call_options& options) {
  // Tells the other ranks, and throws.
  detail::call refused{on, detail::call_header::of(operation, element, 0), {}, options, objection};
  static_cast<void>(refused.first_round([] {}));
  throw error{errc::invalid_argument, objection};
}

}  // namespace peerbus::collective
