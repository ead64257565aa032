// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include <peerbus/collective/detail/operands.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::collective::detail {

PEERBUS_INLINE bool are_apart(std::span<const std::byte> a, std::span<const std::byte> b) noexcept {
  // As numbers: a range that is refused because it is null with a size comes here too.
  const auto begin_of_a = reinterpret_cast<std::uintptr_t>(a.data());
  const auto begin_of_b = reinterpret_cast<std::uintptr_t>(b.data());
  return a.empty() || b.empty() || begin_of_a >= begin_of_b + b.size() ||
         begin_of_b >= begin_of_a + a.size();
}

PEERBUS_INLINE std::string object_to_residual(const request& given) {
  using peerbus::detail::concat;
  const std::span<const std::byte> residual = *given.residual;
  const std::size_t count = residual.size() / given.element.bytes;
  if (residual.data() == nullptr && count != 0)
    return concat("a residual that is null but ", count, " elements long");
  if (residual.size() != given.output.size())
    return wrong_size("residual", count, 1, given.output_count());
  if ((residual.data() != given.input.data() && !are_apart(residual, given.input)) ||
      (residual.data() != given.output.data() && !are_apart(residual, given.output)))
    return "a residual that overlaps another operand in part";
  return {};
}

PEERBUS_INLINE std::string object_to(const request& given, bool has_input, bool has_output,
                                     std::size_t in_place_at) {
  using peerbus::detail::concat;
  const std::span<const std::byte> input = has_input ? given.input : std::span<const std::byte>{};
  const std::span<const std::byte> output = has_output ? given.output : std::span<std::byte>{};
  if (input.data() == nullptr && !input.empty())
    return concat("an input that is null but ", given.input_count(), " elements long");
  if (output.data() == nullptr && !output.empty())
    return concat("an output that is null but ", given.output_count(), " elements long");
  if (!given.input_in.is_inside && !input.empty())
    return "an input outside the window that it was given with";
  if (given.residual)
    if (std::string objection = object_to_residual(given); !objection.empty()) return objection;
  if (are_apart(input, output)) return {};
  const bool output_is_longer = output.size() > input.size();
  const bool is_in_place = output_is_longer ? input.data() == output.data() + in_place_at
                                            : output.data() == input.data() + in_place_at;
  if (is_in_place) return {};
  return concat("an input and an output that overlap, expected them to lie apart, or the ",
                output_is_longer ? "input" : "output", " at byte ", in_place_at, " of the ",
                output_is_longer ? "output" : "input");
}

PEERBUS_ERROR_PATH std::string wrong_root(const team& team, rank_id root) {
  return peerbus::detail::concat("root ", root, ", expected a rank below ", team.size());
}

PEERBUS_ERROR_PATH std::string wrong_size(std::string_view operand, std::size_t given,
                                          std::size_t ranks, std::size_t each) {
  const std::string text = peerbus::detail::concat(operand == "residual" ? "a " : "an ", operand,
                                                   " of ", given, " elements, expected ");
  if (ranks == 1) return peerbus::detail::concat(text, each);
  return peerbus::detail::concat(text, ranks, " ranks x ", each, " = ", ranks * each);
}

PEERBUS_ERROR_PATH std::string indivisible(std::string_view operand, std::size_t given,
                                           std::size_t ranks) {
  return peerbus::detail::concat("an ", operand, " of ", given,
                                 " elements, expected a multiple of the number of ranks, ", ranks);
}

PEERBUS_ERROR_PATH std::string too_large(const element_type& element, std::size_t slice) {
  return peerbus::detail::concat("elements of ", element.bytes, " bytes, expected at most ", slice,
                                 ", a slice of the team's scratch memory");
}

}  // namespace peerbus::collective::detail
