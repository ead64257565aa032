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

/// Keeps the calling thread, and those that it starts from now on, on one logical processor.
/// Returns: nothing, or why that could not be.
[[nodiscard]] inline std::optional<std::string> pin_this_thread(const machine& where,
                                                                std::uint32_t cpu) {
  if (where.handle() == nullptr) return "hwloc does not work here";
  if (!where.is_this_one()) return "hwloc was given another machine";
  const auto set = only(cpu);
  if (hwloc_set_cpubind(where.handle(), set.get(), HWLOC_CPUBIND_THREAD) == 0) return std::nullopt;
  return peerbus::detail::concat("cpu ", cpu, ": ", peerbus::detail::describe_errno(errno));
}

/// Asks for the pages of `part`, whole pages that nobody has touched yet, to come from `node`,
/// whoever touches them first, and from another node if that one is full. Of memory that processes
/// share through a file in memory (memfd, tmpfs) the file keeps the wish, so that it is enough if
/// one of them says it (see mbind(2), MAP_SHARED). Takes no memory.
/// Returns: nothing, or why that could not be.
[[nodiscard]] inline std::optional<std::string> bind_memory(const machine& where,
                                                            std::span<std::byte> part,
                                                            std::uint32_t node) {
  if (where.handle() == nullptr) return "hwloc does not work here";
  if (!where.is_this_one()) return "hwloc was given another machine";
  const auto set = only(node);
  // Without HWLOC_MEMBIND_STRICT it is a preference: a full node must not end the process.
  if (hwloc_set_area_membind(where.handle(), part.data(), part.size(), set.get(),
                             HWLOC_MEMBIND_BIND, HWLOC_MEMBIND_BYNODESET) == 0)
    return std::nullopt;
  const int reason = errno;
  return peerbus::detail::concat(
      "node ", node, ": ", peerbus::detail::describe_errno(reason),
      reason == EPERM ? " (containers may forbid mbind; it wants CAP_SYS_NICE there)" : "");
}

}  // namespace peerbus::topology
