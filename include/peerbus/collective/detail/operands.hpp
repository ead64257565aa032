// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <peerbus/collective/in_window.hpp>
#include <peerbus/collective/request.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/communicator/window.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::collective::detail {

/// The element type of a range, without const.
template <spannable R>
using element_of = std::remove_cv_t<typename decltype(std::span{std::declval<R&>()})::element_type>;

/// A range whose elements can be written.
template <class R>
concept output_range =
    spannable<R> &&
    !std::is_const_v<typename decltype(std::span{std::declval<R&>()})::element_type>;

/// True if a range was made by `in_window`.
template <class R>
inline constexpr bool is_window_range = false;
template <class T>
inline constexpr bool is_window_range<window_range<T>> = true;

/// Two ranges with the same element type.
template <class A, class B>
concept same_elements = std::same_as<element_of<A>, element_of<B>>;

/// Returns the request of an operation on ranges, without roots and parts. Reads no bytes.
template <spannable Input, output_range Output>
  requires same_elements<Input, Output>
[[nodiscard]] request request_of(operation_kind what, const Input& input, Output& output) noexcept {
  request made{.what = what,
               .element = element_type::of<element_of<Input>>(),
               .input = std::as_bytes(std::span{input}),
               .output = std::as_writable_bytes(std::span{output})};
  if constexpr (is_window_range<Input>) made.input_in = input.place();
  return made;
}

/// Returns `bytes` rounded down to whole elements.
[[nodiscard]] constexpr std::size_t whole_elements(std::size_t bytes,
                                                   const element_type& element) noexcept {
  return bytes / element.bytes * element.bytes;
}

// The functions below say what is wrong with the arguments of a call. Where they may find nothing
// wrong, they return an empty string.

/// Returns whether two ranges share no byte.
bool are_apart(std::span<const std::byte> a, std::span<const std::byte> b) noexcept;

/// Returns an objection to a residual that is null but not empty, differs in size from the output,
/// or overlaps an operand in part.
std::string object_to_residual(const request& given);

/// Returns an objection to operands that are null but not empty, to a residual, and to operands
/// that share bytes, except if the shorter operand lies at byte `in_place_at` of the longer
/// operand. Does not look at an operand that this rank does not have.
std::string object_to(const request& given, bool has_input, bool has_output,
                      std::size_t in_place_at);

/// Returns the text that a root is no rank of the team.
std::string wrong_root(const team& team, rank_id root);

/// Returns the text that an operand has the wrong size: "an output of 3 elements, expected 4 ranks
/// x 2 = 8".
std::string wrong_size(std::string_view operand, std::size_t given, std::size_t ranks,
                       std::size_t each);

/// Returns the text that the elements of an operand cannot be divided equally among the ranks.
std::string indivisible(std::string_view operand, std::size_t given, std::size_t ranks);

/// Returns the text that an element does not fit into a slice of `slice` bytes.
std::string too_large(const element_type& element, std::size_t slice);

}  // namespace peerbus::collective::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/collective/detail/operands.ipp>  // IWYU pragma: keep
#endif
