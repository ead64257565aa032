// SPDX-License-Identifier: MIT
#pragma once

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <optional>
#include <utility>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/system_error.hpp>
#include <peerbus/transport/planes/wakeups.hpp>

namespace peerbus::detail {

PEERBUS_INLINE wakeups::wakeups(bootstrap& group, std::vector<std::byte*> lines, deadline until)
    : own_{group.rank()},
      lines_{std::move(lines)},
      all_{unique_fd::above_standard(::epoll_create1(EPOLL_CLOEXEC))} {
  bootstrap::contribution own;
  own.fd = unique_fd::above_standard(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  std::optional<error> objection;
  if (!own.fd || !all_) objection = system_failure("planes: making a wakeup", errno);
  auto given = gather_or_refuse(group, "planes: wakeups", std::move(own), objection, until);
  const auto make = [&] {
    wakeups_.reserve(given.size());
    for (auto& from : given) wakeups_.push_back(std::move(from.fd));
    watch(wakeups_[own_.index()].get());
  };
  agree(group, "planes: wakeups made", {}, until, objection_of("the wakeups of a plane", make));
}

PEERBUS_INLINE void wakeups::watch(int other) {
  epoll_event event{};
  event.events = EPOLLIN;
  if (::epoll_ctl(all_.get(), EPOLL_CTL_ADD, other, &event) != 0)
    throw system_failure("planes: watching a descriptor", errno);
}

PEERBUS_INLINE bool wakeups::announce(std::uint64_t key) noexcept {
  // order: acquire; pairs with the release in `withdraw`, for what this rank does while armed.
  if (is_taken_.exchange(true, std::memory_order_acquire)) return false;
  word(lines_[own_.index()]).store(key, std::memory_order_relaxed);
  // Before the caller reads the signal; pairs with the fence of a raiser.
  signal_word::fence();
  return true;
}

PEERBUS_INLINE void wakeups::withdraw() noexcept {
  word(lines_[own_.index()]).store(0, std::memory_order_relaxed);
  // A raiser that saw the line may ring later: that ends the next sleep early, and does no harm.
  ::eventfd_t writes = 0;
  static_cast<void>(::eventfd_read(wakeups_[own_.index()].get(), &writes));
  is_taken_.store(false, std::memory_order_release);
}

PEERBUS_INLINE void wakeups::wake_now(rank_id peer) noexcept {
  static_cast<void>(::eventfd_write(wakeups_[peer.index()].get(), 1));
}

}  // namespace peerbus::detail
