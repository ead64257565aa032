// SPDX-License-Identifier: MIT
#pragma once

#include <poll.h>

#include <chrono>
#include <ctime>

#include <peerbus/core/wait_readable.hpp>

namespace peerbus::detail {

PEERBUS_INLINE void wait_readable(int fd, deadline until) noexcept {
  wait_readable(fd, -1, until);  // The system skips what is no descriptor.
}

PEERBUS_INLINE void wait_readable(int first, int second, deadline until) noexcept {
  const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(until.remaining());
  const timespec span{left.count() / 1'000'000'000, left.count() % 1'000'000'000};
  pollfd entries[] = {{first, POLLIN, 0}, {second, POLLIN, 0}};
  static_cast<void>(::ppoll(entries, second < 0 ? 1 : 2, &span, nullptr));
}

}  // namespace peerbus::detail
