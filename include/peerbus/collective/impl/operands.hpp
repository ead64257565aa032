// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include <peerbus/collective/detail/call_header.hpp>
#include <peerbus/collective/detail/operands.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::collective::detail {

PEERBUS_INLINE std::string object_to(const operands& given, std::size_t in_place_at) {
  using peerbus::detail::concat;
  if (given.input.data() == nullptr && !given.input.empty())
    return concat("an input that is null but ", given.input_count(), " elements long");
  if (given.output.data() == nullptr && !given.output.empty())
    return concat("an output that is null but ", given.output_count(), " elements long");
  if (!given.input_in.is_inside && !given.input.empty())
    return "an input outside the window that it was given with";
  if (given.input.empty() || given.output.empty()) return {};
  const std::byte* const input = given.input.data();
  const std::byte* const output = given.output.data();
  const std::less<> before;
  const bool apart =
      !before(input, output + given.output.size()) || !before(output, input + given.input.size());
  const bool output_is_longer = given.output.size() > given.input.size();
  const bool is_in_place =
      output_is_longer ? input == output + in_place_at : output == input + in_place_at;
  if (apart || is_in_place) return {};
  return concat("an input and an output that overlap, expected them to lie apart, or the ",
                output_is_longer ? "input" : "output", " at byte ", in_place_at, " of the ",
                output_is_longer ? "output" : "input");
}

PEERBUS_INLINE std::string object_to_root(const team& on, rank_id root) {
  if (root.index() < on.size()) return {};
  return peerbus::detail::concat("root ", root, ", expected a rank below ", on.size());
}

PEERBUS_ERROR_PATH std::string wrong_size(std::string_view operand, std::size_t given,
                                          std::size_t ranks, std::size_t each) {
  const std::string text =
      peerbus::detail::concat("an ", operand, " of ", given, " elements, expected ");
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
