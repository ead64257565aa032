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

/// Checks that this process may open `needed` files more, at least one. Providers do not say that
/// they lack descriptors: `fi_getinfo` then finds no provider, and a connection never comes about.
/// Throws: `error` system, which names the limit.
inline void require_descriptors(std::string_view doing, std::size_t needed) {
  const auto newest = unique_fd::above_standard(::eventfd(0, EFD_CLOEXEC));
  if (!newest) throw system_failure(concat("fabric: ", doing), errno);
  const std::string lack = describe_lack_of_descriptors(needed - 1, newest);
  if (!lack.empty()) throw error{errc::system, concat("fabric: ", doing, ": ", lack)};
}

}  // namespace peerbus::detail::ofi
