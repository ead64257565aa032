// SPDX-License-Identifier: MIT
#pragma once

#include <poll.h>
#include <sys/epoll.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>

#include <peerbus/core/rank.hpp>
#include <peerbus/core/system_error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus::detail {

/// The connections on which bytes of other ranks may arrive. A connection is reported until its
/// bytes are read. Empty until a connection is added.
class arrivals {
 public:
  [[nodiscard]] explicit operator bool() const noexcept { return static_cast<bool>(watched_); }

  /// Adds the connection of `peer`, which is `socket`.
  /// Throws: `error` system.
  void add(rank_id peer, int socket) {
    if (!watched_) watched_ = unique_fd::above_standard(::epoll_create1(EPOLL_CLOEXEC));
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = peer.index();
    if (!watched_ || ::epoll_ctl(watched_.get(), EPOLL_CTL_ADD, socket, &event) != 0)
      throw system_failure(concat("watching the connection of ", peer), errno);
  }
  void remove(int socket) noexcept {
    (void)::epoll_ctl(watched_.get(), EPOLL_CTL_DEL, socket, nullptr);
  }

  /// Calls `hear` with each rank whose bytes have arrived, perhaps more than once. `most` is the
  /// largest number of connections. The kernel reports ready connections in rotation, so every
  /// ready rank is reported even if other ranks send without a pause.
  template <class F>
  void for_each(std::size_t most, F hear) const noexcept {
    std::array<epoll_event, 16> events;
    for (std::size_t named = 0; named <= most; named += events.size()) {
      const int count =
          ::epoll_wait(watched_.get(), events.data(), static_cast<int>(events.size()), 0);
      for (int i = 0; i < count; ++i) hear(rank_id{events[static_cast<std::size_t>(i)].data.u64});
      if (count < static_cast<int>(events.size())) return;
    }
  }

  /// Waits until bytes have arrived, but no longer than `patience`.
  void wait(std::chrono::milliseconds patience) const noexcept {
    pollfd entry{watched_.get(), POLLIN, 0};
    (void)::poll(&entry, 1, static_cast<int>(patience.count()));
  }

 private:
  unique_fd watched_;
};

}  // namespace peerbus::detail
