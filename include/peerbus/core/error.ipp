// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/core/compiled.hpp>
#include <peerbus/core/error.hpp>

namespace peerbus {

namespace detail {
inline constexpr std::string_view error_prefix = "peerbus: ";
}  // namespace detail

PEERBUS_ERROR_PATH error::error(errc code, std::string_view text)
    : std::runtime_error{detail::concat(detail::error_prefix, text, " [", to_string(code), "]")},
      code_{code},
      text_bytes_{text.size()} {}

PEERBUS_ERROR_PATH std::string_view error::text() const noexcept {
  return std::string_view{what()}.substr(detail::error_prefix.size(), text_bytes_);
}

}  // namespace peerbus
