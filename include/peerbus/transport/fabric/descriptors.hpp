// SPDX-License-Identifier: MIT
#pragma once

#include <sys/eventfd.h>

#include <cerrno>
#include <cstddef>
#include <string>
#include <string_view>

#include <peerbus/bootstrap/detail/os.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/system_error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus::detail::ofi {

/// The number of descriptors that a call of libfabric may have open at once, or slightly more.
inline constexpr std::size_t few = 8;

/// Returns a text that says why this process cannot open `needed` more files, at least one. Empty
/// if it can.
inline std::string describe_lack_of_descriptors(std::size_t needed) {
  const auto newest = unique_fd::above_standard(::eventfd(0, EFD_CLOEXEC));
  if (!newest) return system_failure("opening a file", errno).what();
  return detail::describe_lack_of_descriptors(needed - 1, newest);
}

/// Checks that this process may open `needed` more files, at least one. Providers do not report a
/// lack of descriptors: `fi_getinfo` then finds no provider, and a connection never opens.
/// Throws: `error` system, which names the limit.
inline void require_descriptors(std::string_view doing, std::size_t needed) {
  const std::string lack = describe_lack_of_descriptors(needed);
  if (!lack.empty()) throw error{errc::system, concat("fabric: ", doing, ": ", lack)};
}

}  // namespace peerbus::detail::ofi
