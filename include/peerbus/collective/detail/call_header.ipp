// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/collective/detail/call_header.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::collective::detail {

PEERBUS_ERROR_PATH std::string describe(const element_type& element, std::uint64_t count) {
  using peerbus::detail::concat;
  const std::string number = count == call_header::varied ? std::string{} : concat(count, " x ");
  if (element.name == short_text<8>{"bytes"}) return concat(number, element.bytes, " bytes");
  return concat(number, element.name.view());
}

PEERBUS_ERROR_PATH std::string describe(const call_header& call) {
  using peerbus::detail::concat;
  std::string text = concat(call.operation.view(), " of ", describe(call.element, call.count));
  if (call.operation.view() == call_header::coded_operation)
    text += concat(call.reduction.view(), " with hidden ", call.element.bytes);
  else if (!call.reduction.view().empty())
    text += concat(" by ", call.reduction.view());
  if (call.root != call_header::no_root) text += concat(" with root ", call.root);
  if (call.place == operand_place::window_in_place) text += " in place";
  if (call.is_in_window()) text += concat(" in window ", call.window);
  return text;
}

}  // namespace peerbus::collective::detail
