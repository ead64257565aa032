// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <string_view>

#include <peerbus/core/kernel_file.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus::detail {

PEERBUS_INLINE std::string read_kernel_file(const std::string& path) {
  const auto file = unique_fd::above_standard(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  std::array<char, 4096> part;
  while (file) {
    const ssize_t got = ::read(file.get(), part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(part.data(), static_cast<std::size_t>(got));
  }
  return text;
}

PEERBUS_INLINE std::string read_process_stat(pid_t process) {
  const std::string text = read_kernel_file(concat("/proc/", process, "/stat"));
  // The name before the state is in brackets and may hold any character.
  constexpr std::string_view name_end = ") ";
  const auto place = text.rfind(name_end);
  return place == std::string::npos ? "" : text.substr(place + name_end.size());
}

}  // namespace peerbus::detail
