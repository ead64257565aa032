// SPDX-License-Identifier: MIT
#pragma once

#include <sched.h>

#include <cstddef>

namespace bench {

/// Keeps the calling thread on the `index`-th core that it may use, counted round and round. If the
/// system refuses, the thread stays where it is.
inline void pin_this_thread(std::size_t index) noexcept {
  cpu_set_t usable;
  CPU_ZERO(&usable);
  if (::sched_getaffinity(0, sizeof usable, &usable) != 0) return;
  std::size_t skip = index % static_cast<std::size_t>(CPU_COUNT(&usable));
  for (std::size_t core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &usable) || skip-- != 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    ::sched_setaffinity(0, sizeof one, &one);
    return;
  }
}

}  // namespace bench
