// SPDX-License-Identifier: MIT
#pragma once

#include <poll.h>

#include <chrono>
#include <ctime>

#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/wait_readable.hpp>

namespace peerbus::detail {

PEERBUS_INLINE void wait_readable(int fd, deadline until) noexcept {
  const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(until.remaining());
  const timespec span{static_cast<std::time_t>(left.count() / 1'000'000'000),
                      static_cast<long>(left.count() % 1'000'000'000)};
  pollfd entry{fd, POLLIN, 0};
  static_cast<void>(::ppoll(&entry, 1, &span, nullptr));
}

}  // namespace peerbus::detail
