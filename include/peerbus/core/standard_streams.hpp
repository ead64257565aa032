// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <initializer_list>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus::detail {

/// Sees to it that no descriptor which another library opens from now on gets the number of a
/// standard stream, as `unique_fd::above_standard` does for our own: a number that is free is
/// taken until the process ends, by a descriptor that can be neither read nor written. So output
/// fails there as it did before. A program that closes such a number and opens a file has it.
/// Cost: three system calls, or two more for each number that is free.
inline void occupy_standard_streams() noexcept {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) >= 0) continue;
    const int fd = ::open("/", O_PATH | O_CLOEXEC);
    if (fd > STDERR_FILENO) ::close(fd);  // Another thread has taken the number.
  }
}

}  // namespace peerbus::detail
