// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <initializer_list>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus::detail {

/// Occupies the number of each standard stream that is closed, until the process ends, by a
/// descriptor that can be neither read nor written. So no descriptor which another library opens
/// later gets such a number, as `unique_fd::above_standard` ensures for this library, and output to
/// the stream still fails. A program can close the number and open a file there.
/// Cost: three system calls, and one or two more for each number that is free.
inline void occupy_standard_streams() noexcept {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) >= 0) continue;
    const int fd = ::open("/", O_PATH | O_CLOEXEC);
    if (fd > STDERR_FILENO) ::close(fd);  // Another thread has taken the number.
  }
}

}  // namespace peerbus::detail
