// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus {

/// Owns a file descriptor, which it closes when it is destroyed. Empty (-1) by default.
class unique_fd {
 public:
  unique_fd() = default;
  /// Takes over `fd`, which is a descriptor or -1.
  explicit unique_fd(int fd) noexcept : fd_{fd} {}
  /// Takes over `fd`, a new descriptor or -1, under a number above 2. A daemon may run without
  /// standard streams. Otherwise its log could go into a connection that got the number of such a
  /// stream. Empty if `fd` is -1, or if no number is left; errno then has the reason.
  /// Cost: nothing, or two system calls if `fd` is 0, 1 or 2.
  [[nodiscard]] static unique_fd above_standard(int fd) noexcept {
    if (fd < 0 || fd > STDERR_FILENO) return unique_fd{fd};
    unique_fd moved{::fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1)};
    const int number = errno;
    ::close(fd);
    errno = number;
    return moved;
  }
  /// Takes over the descriptor of `other`, which is empty afterwards.
  unique_fd(unique_fd&& other) noexcept : fd_{std::exchange(other.fd_, -1)} {}
  unique_fd& operator=(unique_fd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  unique_fd(const unique_fd&) = delete;
  unique_fd& operator=(const unique_fd&) = delete;
  ~unique_fd() { reset(); }

  /// Returns the descriptor, or -1. This object keeps the ownership.
  [[nodiscard]] int get() const noexcept { return fd_; }
  /// Returns whether there is a descriptor.
  [[nodiscard]] explicit operator bool() const noexcept { return fd_ >= 0; }
  /// Closes the descriptor, if there is one, and takes over `fd`.
  void reset(int fd = -1) noexcept {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

}  // namespace peerbus
