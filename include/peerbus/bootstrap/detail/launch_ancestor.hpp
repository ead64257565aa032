// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <optional>
#include <span>

#include <peerbus/core/compiled.hpp>

namespace peerbus::detail {

/// A process that a launcher started, and from which this process has inherited the launcher's
/// variables.
struct launch_ancestor {
  enum class role {
    rank,   ///< It is a rank of a group of peerbus now.
    shell,  ///< A shell that takes its commands from a user.
  };
  pid_t pid;
  role is;
};

/// Returns the nearest ancestor which shows that the launcher's `variables` are not meant for this
/// process: an ancestor that started with the same values and is a rank or a shell. A wrapper
/// between the launcher and this process is neither. A rank is recognised by its memory: each
/// bootstrap of processes that a launcher started maps a file whose name begins with peerbus. An
/// ancestor that cannot be read in /proc is ignored.
/// Cost: reads three files per ancestor that has the variables.
std::optional<launch_ancestor> find_launch_ancestor(std::span<const char* const> variables);

}  // namespace peerbus::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/bootstrap/detail/launch_ancestor.ipp>  // IWYU pragma: keep
#endif
