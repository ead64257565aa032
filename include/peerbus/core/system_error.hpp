// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

#include <peerbus/core/compiled.hpp>
#include <peerbus/core/error.hpp>

namespace peerbus {

/// Returns the meaning of the errno `number`. Unlike strerror, several threads may call it at once.
std::string describe_errno(int number);

/// Makes an `error` for a system call that failed while `doing` something. Its text has the reason
/// and, if a user can remedy it, a hint.
error system_failure(std::string_view doing, int number);

namespace detail {
using peerbus::describe_errno;
using peerbus::system_failure;
}  // namespace detail

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/core/system_error.ipp>  // IWYU pragma: keep
#endif
