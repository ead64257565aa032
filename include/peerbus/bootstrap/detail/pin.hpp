// SPDX-License-Identifier: MIT
#pragma once

#include <sched.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <peerbus/bootstrap/detail/os.hpp>

namespace peerbus::detail {

/// Pins the calling thread to one core.
/// Throws: `error` system.
inline void pin_to_core(std::uint32_t core) {
  const std::size_t bytes = CPU_ALLOC_SIZE(core + 1);
  const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set{
      CPU_ALLOC(core + 1), [](cpu_set_t* owned) { CPU_FREE(owned); }};
  CPU_ZERO_S(bytes, set.get());
  CPU_SET_S(core, bytes, set.get());
  if (::sched_setaffinity(0, bytes, set.get()) != 0)
    throw system_failure(concat("pinning to core ", core), errno);
}

}  // namespace peerbus::detail
