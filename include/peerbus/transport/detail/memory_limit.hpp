// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include <peerbus/core/compiled.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/refinements.hpp>

namespace peerbus::detail {

/// Returns the largest amount of memory that this process could have, in bytes. This is the
/// machine's memory, or the limit of its cgroup or of an ancestor if that is lower. `root` precedes
/// the paths of the files that state the limits.
std::size_t memory_limit(const std::string& root = {});

/// Returns an error if a window of `shape` is larger than `memory_limit()`, otherwise nothing. A
/// window that fits may still meet a full machine. Memory is committed page by page as it is
/// touched, so that a buffer sized for the worst case costs only the pages that are used.
std::optional<error> objection_to(window_shape shape);

/// Returns an error if no window can be made of `memory`, because memory is missing or not aligned
/// to a cache line; otherwise nothing.
std::optional<error> objection_to(const window_memory& memory);

}  // namespace peerbus::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/transport/detail/memory_limit.ipp>  // IWYU pragma: keep
#endif
