// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <peerbus/collective/detail/call_header.hpp>
#include <peerbus/collective/in_window.hpp>
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

/// Whether a range is one that `in_window` made.
template <class R>
inline constexpr bool is_window_range = false;
template <class T>
inline constexpr bool is_window_range<window_range<T>> = true;

/// Two ranges of the same element type.
template <class A, class B>
concept same_elements = std::same_as<element_of<A>, element_of<B>>;

/// The operands of a call as bytes, with the type of their elements.
struct operands {
  element_type element{};              ///< the type of the elements of both
  std::span<const std::byte> input{};  ///< what this rank contributes
  std::span<std::byte> output{};       ///< what it receives
  window_place input_in{};             ///< the window of the input, if it is given in one
  std::optional<std::span<const std::byte>> residual{};  ///< what is added to the sum, if anything

  /// Returns where peers access the input if they read it alone.
  [[nodiscard]] operand_place place() const noexcept {
    return input_in.part_of != nullptr ? operand_place::window : operand_place::memory;
  }

  /// Returns them without the output, which this rank does not use.
  [[nodiscard]] operands without_output() const noexcept { return {element, input, {}, input_in}; }
  /// Returns them without the input, which this rank does not use.
  [[nodiscard]] operands without_input() const noexcept { return {element, {}, output, input_in}; }
  /// Returns whether both are the same range.
  [[nodiscard]] bool is_in_place() const noexcept { return input.data() == output.data(); }
  /// Returns the elements of the input.
  [[nodiscard]] std::size_t input_count() const noexcept { return input.size() / element.bytes; }
  /// Returns the elements of the output.
  [[nodiscard]] std::size_t output_count() const noexcept { return output.size() / element.bytes; }
};

/// Returns the operands of a call. No bytes are read.
template <spannable Input, output_range Output>
  requires same_elements<Input, Output>
[[nodiscard]] operands operands_of(const Input& input, Output& output) noexcept {
  operands made{element_type::of<element_of<Input>>(), std::as_bytes(std::span{input}),
                std::as_writable_bytes(std::span{output})};
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

/// Objects to a residual that is null but not empty, has another size than the output, or overlaps
/// an operand in part.
std::string object_to_residual(const operands& given);

/// Objects to operands that are null but not empty, to a residual, and to operands that share
/// bytes, except if the shorter one lies at byte `in_place_at` of the longer one.
std::string object_to(const operands& given, std::size_t in_place_at);

/// Objects to a root that is no rank of the team.
std::string object_to_root(const team& on, rank_id root);

/// Says that an operand has the wrong size: "an output of 3 elements, expected 4 ranks x 2 = 8".
std::string wrong_size(std::string_view operand, std::size_t given, std::size_t ranks,
                       std::size_t each);

/// Says that the elements of an operand cannot be dealt out to the ranks.
std::string indivisible(std::string_view operand, std::size_t given, std::size_t ranks);

/// Says that an element does not fit into a slice of `slice` bytes.
std::string too_large(const element_type& element, std::size_t slice);

}  // namespace peerbus::collective::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/collective/detail/operands.ipp>  // IWYU pragma: keep
#endif
