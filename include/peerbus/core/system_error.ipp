// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cerrno>
#include <cstring>

#include <peerbus/core/system_error.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::detail {

/// Returns the text of either kind of strerror_r: glibc's returns it, POSIX's fills the buffer.
PEERBUS_INLINE const char* strerror_text(const char* text, const char*) noexcept { return text; }
PEERBUS_INLINE const char* strerror_text(int, const char* buffer) noexcept { return buffer; }

}  // namespace peerbus::detail

namespace peerbus {

PEERBUS_ERROR_PATH std::string describe_errno(int number) {
  std::array<char, 128> buffer{};
  const char* const text =
      detail::strerror_text(::strerror_r(number, buffer.data(), buffer.size()), buffer.data());
  return concat(text, number == EMFILE ? " (see `ulimit -n`)" : "");
}

PEERBUS_ERROR_PATH error system_failure(std::string_view doing, int number) {
  return error{errc::system, concat(doing, ": ", describe_errno(number))};
}

}  // namespace peerbus
