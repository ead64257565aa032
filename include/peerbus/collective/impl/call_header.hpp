// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include <peerbus/collective/detail/call_header.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::collective::detail {

PEERBUS_ERROR_PATH std::string describe(const call_header& call) {
  using peerbus::detail::concat;
  std::string text = concat(call.operation.view(), " of ", call.count, " x ");
  if (call.element.name == short_text<8>{"bytes"})
    text += concat(call.element.bytes, " bytes");
  else
    text += call.element.name.view();
  if (!call.reduction.view().empty()) text += concat(" by ", call.reduction.view());
  if (call.root != call_header::no_root) text += concat(" with root ", call.root);
  if (call.place == operand_place::window) text += " in a window";
  if (call.place == operand_place::window_in_place) text += " in place in a window";
  return text;
}

}  // namespace peerbus::collective::detail
