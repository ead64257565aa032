// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/placed.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus::detail {

/// Wakes near ranks that sleep on a descriptor. A rank that waits for signals of both planes cannot
/// sleep on a futex, because its device reports arrivals by a descriptor. So it sleeps on two
/// descriptors: the device's, and an eventfd, the rank's wakeup. A near rank writes the wakeup
/// after it has raised the signal that the sleeper waits for.
///
/// No wakeup is lost. The sleeper writes the key of the awaited signal to its line, executes a
/// fence and reads that signal. A raiser writes the signal, executes a fence (`signal_word::raise`
/// does) and reads the line. So one of them sees the write of the other. A wakeup stays readable
/// until the sleeper has read it, so a wakeup that is written before the sleep ends the sleep.
class wakeups {
 public:
  /// The size of a rank's line, which near ranks read. It holds the key of the awaited signal, or
  /// 0.
  static constexpr std::size_t line_bytes = cache_line_bytes;
  /// The key that stands for any signal.
  static constexpr std::uint64_t any_signal = std::numeric_limits<std::uint64_t>::max();

  /// Returns the key of signal `id` in window number `window`.
  [[nodiscard]] static constexpr std::uint64_t key_of(std::uint32_t window, signal_id id) noexcept {
    return (std::uint64_t{window} << 32U | index(id)) + 1;
  }

  /// Gathers the wakeups of the ranks of `group`. Collective. `lines[r]` is the line of rank r, or
  /// nullptr if it cannot be loaded here.
  /// Throws, on all ranks of `group`: `error` system, or as `bootstrap::allgather`.
  wakeups(bootstrap& group, std::vector<std::byte*> lines, deadline until);
  wakeups(const wakeups&) = delete;
  wakeups& operator=(const wakeups&) = delete;
  ~wakeups() = default;

  /// Makes `fd()` readable also while `other` is.
  /// Throws: `error` system.
  void watch(int other);
  /// Returns the descriptor to sleep on. It is readable after this rank's wakeup was written, and
  /// while a watched descriptor is.
  [[nodiscard]] int fd() const noexcept { return all_.get(); }

  /// Announces that this thread is about to sleep until the signal `key` is raised. The caller
  /// reads the signal afterwards. Only one thread at a time can announce.
  /// Returns: false, at once, if another thread has announced.
  [[nodiscard]] bool announce(std::uint64_t key) noexcept;
  /// Withdraws the announcement of `announce`.
  void withdraw() noexcept;

  /// Wakes `peer` if it sleeps until the signal `key` is raised. The caller has raised it by
  /// `signal_word::raise`.
  /// Cost: a load, and a system call if the peer sleeps.
  void wake(rank_id peer, std::uint64_t key) noexcept {
    std::byte* const line = lines_[peer.index()];
    if (line == nullptr) return;
    // order: relaxed; the fence in `raise` orders it after the store of the signal. Pairs with
    // `announce`.
    const std::uint64_t awaited = word(line).load(std::memory_order_relaxed);
    if (awaited == key || awaited == any_signal) wake_now(peer);
  }

 private:
  static std::atomic_ref<std::uint64_t> word(std::byte* line) noexcept {
    return std::atomic_ref{*peerbus::detail::placed<std::uint64_t>(line)};
  }
  void wake_now(rank_id peer) noexcept;

  rank_id own_;
  std::vector<std::byte*> lines_;
  std::vector<unique_fd> wakeups_;
  unique_fd all_;  ///< an epoll set of this rank's wakeup and the watched descriptors
  std::atomic<bool> is_taken_{false};
};

}  // namespace peerbus::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/transport/planes/wakeups.ipp>  // IWYU pragma: keep
#endif
