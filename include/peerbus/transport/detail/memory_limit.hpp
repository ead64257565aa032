// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>

#include <peerbus/core/compiled.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::detail {

/// The memory that this process could have at the very most: the machine's, or its container's
/// limit if that is lower (cgroup v2, then v1, as a container sees its own).
std::size_t memory_limit();

/// Why a window of this shape cannot be had by anybody on this machine, if so. A window that fits
/// may still meet a full machine: memory is taken page by page as it is touched, so that a buffer
/// sized for the worst case costs what is used.
std::optional<error> objection_to(window_shape shape);

}  // namespace peerbus::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/transport/impl/memory_limit.hpp>  // IWYU pragma: keep
#endif
