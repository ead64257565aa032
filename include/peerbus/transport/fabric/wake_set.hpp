// SPDX-License-Identifier: MIT
#pragma once

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <utility>

#include <peerbus/core/system_error.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus::detail::ofi {

/// A descriptor that is readable when one of several descriptors is. More descriptors can be added
/// while threads sleep on it, so that it stays the same when a class of traffic is added.
class wake_set {
 public:
  /// Watches `fd`. If `fd` is -1, `fd()` stays -1.
  /// Throws: `error` system.
  explicit wake_set(int fd) {
    if (fd < 0) return;
    all_ = unique_fd::above_standard(::epoll_create1(EPOLL_CLOEXEC));
    if (!all_) throw system_failure("fabric: a descriptor for arrivals", errno);
    watch(fd);
  }

  /// Watches `fd` too, unless it or `fd()` is -1.
  /// Throws: `error` system.
  void add(int fd) {
    if (!all_ || fd < 0) return;
    wakeup_ = unique_fd::above_standard(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!wakeup_) throw system_failure("fabric: a descriptor for arrivals", errno);
    watch(wakeup_.get());
    watch(fd);
  }
  [[nodiscard]] int fd() const noexcept { return all_.get(); }

  /// Makes `fd()` readable until `clear()`, if a second descriptor was added. Only one thread at a
  /// time may call it.
  void wake() noexcept { is_woken_ = wakeup_ && ::eventfd_write(wakeup_.get(), 1) == 0; }
  void clear() noexcept {
    eventfd_t count = 0;
    if (std::exchange(is_woken_, false)) static_cast<void>(::eventfd_read(wakeup_.get(), &count));
  }

 private:
  void watch(int fd) const {
    epoll_event event{};
    event.events = EPOLLIN;
    if (::epoll_ctl(all_.get(), EPOLL_CTL_ADD, fd, &event) != 0)
      throw system_failure("fabric: watching a descriptor", errno);
  }

  unique_fd all_;
  unique_fd wakeup_;
  bool is_woken_ = false;
};

}  // namespace peerbus::detail::ofi
