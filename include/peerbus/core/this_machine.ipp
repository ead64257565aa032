// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <array>
#include <cstdio>
#include <string_view>

#include <peerbus/core/text.hpp>
#include <peerbus/core/this_machine.hpp>
#include <peerbus/core/unique_file.hpp>

namespace peerbus {

PEERBUS_INLINE std::string cpu_model(const std::string& root) {
  const detail::unique_file file{std::fopen((root + "/proc/cpuinfo").c_str(), "rbe")};
  std::array<char, 256> part;
  // Not the whole file: the kernel asks every core for its frequency.
  while (file && std::fgets(part.data(), part.size(), file.get()) != nullptr) {
    std::string_view line{part.data()};
    if (line.ends_with('\n')) line.remove_suffix(1);
    const auto colon = line.find(": ");
    // x86 and arm64 have different words for it; arm64 may have none.
    if (colon != std::string_view::npos &&
        (line.starts_with("model name") || line.starts_with("CPU part")))
      return std::string{line.substr(colon + 2)};
  }
  return "unknown";
}

PEERBUS_INLINE std::string this_machine() {
  const long cores = ::sysconf(_SC_NPROCESSORS_ONLN);
  return detail::concat(cpu_model(), ", ", cores, cores == 1 ? " core" : " cores");
}

}  // namespace peerbus
