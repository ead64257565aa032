// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

#include <peerbus/core/compiled.hpp>
#include <peerbus/core/error.hpp>

namespace peerbus::detail {

/// What errno `number` means. Unlike strerror it may be called by several threads.
std::string describe_errno(int number);

/// An `error` for a system call that said no, with its reason and, where people can do something
/// about it, what.
error system_failure(std::string_view doing, int number);

}  // namespace peerbus::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/core/impl/system_error.hpp>  // IWYU pragma: keep
#endif
