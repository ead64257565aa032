// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus::detail {

/// Remembers the process that made it. A child by fork has a copy of whatever holds it, but shares
/// the connections and devices behind: what it sent or closed there would be taken for its parent's
/// doing. So whoever holds one asks it before that.
class home_process {
 public:
  home_process() noexcept : pid_{::getpid()} {}

  /// Returns whether the caller is the process that made this, and no child of it.
  /// Cost: a system call.
  [[nodiscard]] bool is_here() const noexcept { return ::getpid() == pid_; }

 private:
  pid_t pid_;
};

}  // namespace peerbus::detail
