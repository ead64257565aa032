// SPDX-License-Identifier: MIT
#pragma once

#include <sched.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include <peerbus/core/align.hpp>

namespace bench {

/// What two cores can do without any library: plain stores and loads in memory that both map. Each
/// side polls a line of its own, which the other side writes. No deadline: a peer that dies in the
/// middle is the business of whoever started both.
///
/// How far a line travels depends on its address, by some ten percent: measure with several
/// mailboxes in turn.
class raw_ping_pong {
 public:
  /// Bytes of one side's mailbox for messages of `payload` bytes: the line with the flag, then the
  /// payload.
  [[nodiscard]] static constexpr std::size_t mailbox_bytes(std::size_t payload) noexcept {
    return payload_at + peerbus::align_up(payload, peerbus::cache_line_bytes);
  }

  /// `mine` and `theirs` are zeroed mailboxes. `crowded`: the two sides may share a core, so that
  /// whoever waits has to give it up.
  raw_ping_pong(std::byte* mine, std::byte* theirs, bool crowded) noexcept
      : mine_{mine}, theirs_{theirs}, crowded_{crowded} {}

  /// `rounds` round trips of the flag's cache line alone. Both sides call it with equal arguments
  /// but for `first`, which one of them has.
  void play(bool first, std::size_t rounds) noexcept {
    for (std::size_t i = 0; i < rounds; ++i) {
      ++epoch_;
      if (first) raise();
      await();
      if (!first) raise();
    }
  }

  /// The same with a payload before each flag. `payload(epoch)` gives what to send, and
  /// `look(arrived, epoch)` is shown what has come.
  template <class Payload, class Look>
  void play(bool first, std::size_t rounds, Payload&& payload, Look&& look) noexcept {
    const auto send = [&] {
      const std::span<const std::byte> bytes = payload(epoch_);
      std::memcpy(theirs_ + payload_at, bytes.data(), bytes.size());
      raise();
    };
    for (std::size_t i = 0; i < rounds; ++i) {
      ++epoch_;
      if (first) send();
      await();
      look(mine_ + payload_at, epoch_);
      if (!first) send();
    }
  }

 private:
  /// Some lines from the flag: the line beside a polled one is prefetched with it by many cores,
  /// and torn from the hands of its writer.
  static constexpr std::size_t payload_at = 4 * peerbus::cache_line_bytes;

  static std::atomic_ref<std::uint64_t> flag(std::byte* mailbox) noexcept {
    return std::atomic_ref{*reinterpret_cast<std::uint64_t*>(mailbox)};
  }
  void raise() noexcept {
    flag(theirs_).store(epoch_, std::memory_order_release);  // order: pairs with that in `await`.
  }
  void await() noexcept {
    // order: acquire; pairs with the release in `raise`.
    while (flag(mine_).load(std::memory_order_acquire) < epoch_)
      if (crowded_) ::sched_yield();
  }

  std::byte* mine_;
  std::byte* theirs_;
  bool crowded_;
  std::uint64_t epoch_ = 0;
};

}  // namespace bench
