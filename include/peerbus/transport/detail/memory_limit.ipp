// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string_view>

#include <peerbus/core/align.hpp>
#include <peerbus/core/cgroup.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/transport/detail/memory_limit.hpp>
#include <peerbus/transport/direct.hpp>

namespace peerbus::detail {

PEERBUS_INLINE std::size_t memory_limit(const std::string& root) {
  const auto pages = static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES));
  const std::size_t machine = pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return static_cast<std::size_t>(std::min<std::uint64_t>(machine, cgroup_memory_limit(root)));
}

PEERBUS_INLINE std::optional<error> objection_to(window_shape shape) {
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

PEERBUS_INLINE std::optional<error> objection_to(const window_memory& memory) {
  const auto judge = [](std::string_view what, std::size_t count,
                        const void* begin) -> std::optional<error> {
    const auto address = reinterpret_cast<std::uintptr_t>(begin);
    if (count == 0 || (address != 0 && address % cache_line_bytes == 0)) return std::nullopt;
    return error{errc::invalid_argument,
                 concat("a window of ", count, what, " at address ", address,
                        ": expected a multiple of ", cache_line_bytes, " above 0")};
  };
  if (auto objection = judge(" bytes", memory.data.size(), memory.data.data())) return objection;
  return judge(" signals", memory.signals.size(), memory.signals.data());
}

}  // namespace peerbus::detail
