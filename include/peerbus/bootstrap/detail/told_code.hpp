// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include <peerbus/core/error.hpp>

namespace peerbus::detail {

/// Returns the code of a failure that another process has sent as a number. If the number is no
/// code of a failure, returns `system`.
constexpr errc told_code(std::uint32_t number) noexcept {
  const auto last = static_cast<std::uint32_t>(errc::view_changed);
  return number >= 1 && number <= last ? static_cast<errc>(number) : errc::system;
}

}  // namespace peerbus::detail
