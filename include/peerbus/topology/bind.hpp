// SPDX-License-Identifier: MIT
#pragma once

#include <hwloc.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include <peerbus/core/system_error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/topology/hwloc_handle.hpp>
#include <peerbus/topology/machine.hpp>

namespace peerbus::topology {

/// Pins the calling thread, and the threads that it starts later, to one logical processor.
/// Returns: nothing, or the reason for a failure in words.
[[nodiscard]] inline std::optional<std::string> pin_this_thread(const machine& where,
                                                                std::uint32_t cpu) {
  if (where.handle() == nullptr) return "hwloc does not work here";
  if (!where.is_this_one()) return "hwloc was given another machine";
  const auto set = only(cpu);
  if (hwloc_set_cpubind(where.handle(), set.get(), HWLOC_CPUBIND_THREAD) == 0) return std::nullopt;
  return peerbus::detail::concat("cpu ", cpu, ": ", peerbus::detail::describe_errno(errno));
}

/// Asks the kernel to take the pages of `part` from `node`, whichever thread touches them first. If
/// `node` is full, they come from another node. `part` consists of whole pages that no thread has
/// touched yet. If processes share `part` through a file in memory (memfd, tmpfs), the file keeps
/// the request, so that only one process has to make it (see mbind(2), MAP_SHARED). The call
/// commits no memory.
/// Returns: nothing, or the reason for a failure in words.
[[nodiscard]] inline std::optional<std::string> bind_memory(const machine& where,
                                                            std::span<std::byte> part,
                                                            std::uint32_t node) {
  if (where.handle() == nullptr) return "hwloc does not work here";
  if (!where.is_this_one()) return "hwloc was given another machine";
  const auto set = only(node);
  // Without HWLOC_MEMBIND_STRICT the node is a preference, so that a full node does not end the
  // process.
  if (hwloc_set_area_membind(where.handle(), part.data(), part.size(), set.get(),
                             HWLOC_MEMBIND_BIND, HWLOC_MEMBIND_BYNODESET) == 0)
    return std::nullopt;
  const int reason = errno;
  return peerbus::detail::concat(
      "node ", node, ": ", peerbus::detail::describe_errno(reason),
      reason == EPERM ? " (containers may forbid mbind; it wants CAP_SYS_NICE there)" : "");
}

}  // namespace peerbus::topology
