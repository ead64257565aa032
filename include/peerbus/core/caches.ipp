// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <string_view>

#include <peerbus/core/caches.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus {

PEERBUS_INLINE shared_cache largest_cache(const std::string& directory) {
  shared_cache largest;
  for (int index = 0; index < 16; ++index) {
    const std::string cache = directory + "/index" + std::to_string(index) + "/";
    const auto read = [&](const char* name) {
      const auto file =
          unique_fd::above_standard(::open((cache + name).c_str(), O_RDONLY | O_CLOEXEC));
      std::array<char, 4096> text{};
      if (file && ::read(file.get(), text.data(), text.size() - 1) < 0) return std::string{};
      return std::string{text.data()};
    };
    const std::string size = read("size");  // Such as 32768K.
    if (size.empty()) break;
    char* unit = nullptr;
    std::size_t bytes = std::strtoull(size.c_str(), &unit, 10);
    if (*unit == 'K') bytes <<= 10U;
    if (*unit == 'M') bytes <<= 20U;
    if (bytes <= largest.bytes) continue;
    std::size_t cores = 0;
    for (const char digit : read("shared_cpu_map")) {  // Such as ff,ffffffff: a bit for each core.
      const std::size_t value = std::string_view{"0123456789abcdef"}.find(digit);
      if (value < 16) cores += static_cast<std::size_t>(std::popcount(value));
    }
    largest = {bytes, std::max<std::size_t>(cores, 1)};
  }
  return largest;
}

PEERBUS_INLINE shared_cache largest_cache() {
  const int core = std::max(::sched_getcpu(), 0);
  return largest_cache("/sys/devices/system/cpu/cpu" + std::to_string(core) + "/cache");
}

}  // namespace peerbus
