// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>

namespace peerbus::detail {

/// Sleeps until the descriptor `fd` is readable or until the deadline. It may return at any time
/// without a reason, so that callers check their condition again.
/// Cost: one system call.
void wait_readable(int fd, deadline until) noexcept;
/// Sleeps until one of two descriptors is readable or until the deadline. Otherwise as above.
void wait_readable(int first, int second, deadline until) noexcept;

}  // namespace peerbus::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/core/wait_readable.ipp>  // IWYU pragma: keep
#endif
