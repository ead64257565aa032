// SPDX-License-Identifier: MIT
#pragma once

#include <sys/epoll.h>

#include <cerrno>

#include <peerbus/core/system_error.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus::detail::ofi {

/// A descriptor that is readable when one of several others is. More can be added to it while
/// threads sleep on it, so that it stays the same when a class of traffic is added.
class wake_set {
 public:
  /// Watches `fd`. If that is -1, `fd()` stays -1. Throws: `error` system.
  explicit wake_set(int fd) {
    if (fd < 0) return;
    all_.reset(::epoll_create1(EPOLL_CLOEXEC));
    if (!all_) throw system_failure("fabric: a descriptor for arrivals", errno);
    add(fd);
  }

  /// Watches `fd` too, unless one of the two is none. Throws: `error` system.
  void add(int fd) {
    if (!all_ || fd < 0) return;
    epoll_event event{};
    event.events = EPOLLIN;
    if (::epoll_ctl(all_.get(), EPOLL_CTL_ADD, fd, &event) != 0)
      throw system_failure("fabric: watching a descriptor", errno);
  }
  [[nodiscard]] int fd() const noexcept { return all_.get(); }

 private:
  unique_fd all_;
};

}  // namespace peerbus::detail::ofi
