// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>

namespace peerbus::detail {

/// Sleeps until the descriptor `fd` is readable or until the deadline. Callers must check their
/// condition again, because the call may return at any time without a reason.
/// Cost: one system call.
void wait_readable(int fd, deadline until) noexcept;
/// Sleeps until one of two descriptors is readable or until the deadline. The contract is otherwise
/// that of the function for one descriptor.
void wait_readable(int first, int second, deadline until) noexcept;

}  // namespace peerbus::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/core/wait_readable.ipp>  // IWYU pragma: keep
#endif
