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
#include <peerbus/transport/planes/bells.hpp>

namespace peerbus::detail {

PEERBUS_INLINE bells::bells(bootstrap& group, std::vector<std::byte*> lines, deadline until)
    : own_{group.rank()},
      lines_{std::move(lines)},
      all_{unique_fd::above_standard(::epoll_create1(EPOLL_CLOEXEC))} {
  bootstrap::contribution own;
  own.fd = unique_fd::above_standard(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  std::optional<error> objection;
  if (!own.fd || !all_) objection = system_failure("planes: making a bell", errno);
  auto given = gather_or_refuse(group, "planes: bells", std::move(own), objection, until);
  const auto hang = [&] {
    bells_.reserve(given.size());
    for (auto& from : given) bells_.push_back(std::move(from.fd));
    watch(bells_[own_.index()].get());
  };
  agree(group, "planes: bells hung", {}, until, objection_of("the bells of a plane", hang));
}

PEERBUS_INLINE void bells::watch(int other) {
  epoll_event event{};
  event.events = EPOLLIN;
  if (::epoll_ctl(all_.get(), EPOLL_CTL_ADD, other, &event) != 0)
    throw system_failure("planes: watching a descriptor", errno);
}

PEERBUS_INLINE bool bells::announce(std::uint64_t key) noexcept {
  // order: acquire; pairs with the release in `withdraw`, for what this rank does while armed.
  if (is_taken_.exchange(true, std::memory_order_acquire)) return false;
  word(lines_[own_.index()]).store(key, std::memory_order_relaxed);
  // Before the caller reads the signal; pairs with the fence of a raiser.
  signal_word::fence();
  return true;
}

PEERBUS_INLINE void bells::withdraw() noexcept {
  word(lines_[own_.index()]).store(0, std::memory_order_relaxed);
  // A raiser that saw the line may ring later: that ends the next sleep early, and does no harm.
  ::eventfd_t rings = 0;
  static_cast<void>(::eventfd_read(bells_[own_.index()].get(), &rings));
  is_taken_.store(false, std::memory_order_release);
}

PEERBUS_INLINE void bells::ring_now(rank_id peer) noexcept {
  static_cast<void>(::eventfd_write(bells_[peer.index()].get(), 1));
}

}  // namespace peerbus::detail
