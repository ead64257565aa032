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

/// Returns the most memory that this process could have, in bytes: the machine's, or the limit of
/// its cgroup or of an ancestor if that is lower. `root` precedes the paths of the files that say
/// so.
std::size_t memory_limit(const std::string& root = {});

/// Returns the error of a window that is larger than this machine's memory, if it is. A window that
/// fits may still meet a full machine: memory is taken page by page as it is touched, so that a
/// buffer sized for the worst case costs what is used.
std::optional<error> objection_to(window_shape shape);

/// Returns the error of memory that no window can be made of, if it is such: memory that is missing
/// or not aligned to a cache line.
std::optional<error> objection_to(const window_memory& memory);

}  // namespace peerbus::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/transport/detail/memory_limit.ipp>  // IWYU pragma: keep
#endif
