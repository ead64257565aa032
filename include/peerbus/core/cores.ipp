// SPDX-License-Identifier: MIT
#pragma once

#include <sched.h>

#include <cerrno>
#include <memory>

#include <peerbus/core/cores.hpp>

namespace peerbus {

PEERBUS_INLINE std::vector<std::uint32_t> usable_core_numbers() {
  for (int capacity = CPU_SETSIZE; capacity <= 64 * CPU_SETSIZE; capacity *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set{
        CPU_ALLOC(static_cast<std::size_t>(capacity)), [](cpu_set_t* owned) { CPU_FREE(owned); }};
    const std::size_t bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(capacity));
    CPU_ZERO_S(bytes, set.get());
    if (::sched_getaffinity(0, bytes, set.get()) != 0) {
      if (errno == EINVAL) continue;  // The set is too small for the cores of this kernel.
      break;
    }
    std::vector<std::uint32_t> cores;
    for (std::uint32_t core = 0; core < static_cast<std::uint32_t>(capacity); ++core)
      if (CPU_ISSET_S(core, bytes, set.get())) cores.push_back(core);
    return cores;
  }
  return {};
}

PEERBUS_INLINE std::size_t usable_cores() {
  const std::size_t count = usable_core_numbers().size();
  return count > 0 ? count : 1;
}

}  // namespace peerbus
