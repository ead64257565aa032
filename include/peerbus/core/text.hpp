// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <string>
#include <string_view>

namespace peerbus::detail {

inline void append_text(std::string& out, std::string_view text) { out += text; }
template <class Number>
  requires std::integral<Number> || std::floating_point<Number>
void append_text(std::string& out, Number value) {
  out += std::to_string(value);
}

/// Joins its arguments into one string. Control path only: it allocates. A type of the library
/// joins in by a friend `append_text`.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::string out;
  (append_text(out, parts), ...);
  return out;
}

}  // namespace peerbus::detail
