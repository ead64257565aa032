// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus::detail {

/// Remembers the process that made it. A child by fork gets a copy of every object, but shares the
/// connections and devices behind. If the child sent or closed something there, peers would take it
/// for an act of its parent. So an object that holds a `home_process` asks it first.
class home_process {
 public:
  home_process() noexcept : pid_{::getpid()} {}

  /// Returns whether the caller is the process that made this object, not a child of that process.
  /// Cost: a system call.
  [[nodiscard]] bool is_here() const noexcept { return ::getpid() == pid_; }

 private:
  pid_t pid_;
};

}  // namespace peerbus::detail
