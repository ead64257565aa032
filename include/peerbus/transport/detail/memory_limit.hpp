// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <limits>
#include <optional>

#include <peerbus/core/align.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/direct.hpp>

namespace peerbus::detail {

/// The memory that this process could have at the very most: the machine's, or its container's
/// limit if that is lower (cgroup v2, then v1, as a container sees its own).
inline std::size_t memory_limit() {
  const auto pages = static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES));
  std::size_t limit = pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  for (const char* path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::ifstream file{path};
    std::uint64_t bytes = 0;
    if (file >> bytes && bytes < limit)
      limit = static_cast<std::size_t>(bytes);  // "max" is no number.
  }
  return limit;
}

/// Why a window of this shape cannot be had by anybody on this machine, if so. A window that fits
/// may still meet a full machine: memory is taken page by page as it is touched, so that a buffer
/// sized for the worst case costs what is used.
inline std::optional<error> objection_to(window_shape shape) {
  constexpr std::size_t most = std::numeric_limits<std::size_t>::max() / 4;
  const std::size_t limit = memory_limit();
  const bool countable = shape.bytes < most && shape.signals < most / sizeof(signal_word);
  const std::size_t need = countable ? direct_window::mapped_bytes(shape) : 2 * most;
  if (need <= limit) return std::nullopt;
  return error{errc::out_of_memory,
               concat("a window of ", shape.bytes, " bytes and ", shape.signals,
                      " signals is too large: need ", need >> 20U, " MiB",
                      countable ? "" : " or more", ", have ", limit >> 20U, " MiB")};
}

}  // namespace peerbus::detail
