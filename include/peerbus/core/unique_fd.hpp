// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <utility>

namespace peerbus {

/// Owns a file descriptor, which it closes when it is destroyed. Empty (-1) by default.
class unique_fd {
 public:
  unique_fd() = default;
  /// Takes over `fd`, which is a descriptor or -1.
  explicit unique_fd(int fd) noexcept : fd_{fd} {}
  /// Takes over the descriptor of `other`, which is empty afterwards.
  unique_fd(unique_fd&& other) noexcept : fd_{std::exchange(other.fd_, -1)} {}
  unique_fd& operator=(unique_fd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  unique_fd(const unique_fd&) = delete;
  unique_fd& operator=(const unique_fd&) = delete;
  ~unique_fd() { reset(); }

  /// Returns the descriptor, or -1. It stays owned.
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
