// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include <peerbus/transport/fabric/libfabric.hpp>
#include <peerbus/transport/fabric/notice.hpp>

namespace peerbus::detail::ofi {

/// Finds broken connections that the provider does not report: connections of datagrams that it has
/// silently remade, with losses, and connections whose other end has disappeared. A rank that waits
/// long for a peer sometimes sends it a check, and the peer answers. The sequences of both notices
/// show whether notices of their senders are missing. A rank that breaks a link tells the peer.
///
/// Threads: any; `send` and `send_loss` from one at a time.
/// order: relaxed throughout; the flags guard no memory, and `completions::note_asked` publishes
/// them.
class link_checks {
 public:
  /// Notes that a check is to be sent.
  void owe_check() noexcept { check_.store(true, std::memory_order_relaxed); }
  /// Notes that the peer has sent a check, which is to be answered.
  void owe_checked() noexcept { checked_.store(true, std::memory_order_relaxed); }
  /// Notes that the peer is to be told that the link is broken, within 5 s.
  void owe_loss() noexcept {
    loss_until_.store(now() + patience.count(), std::memory_order_relaxed);
  }
  /// Notes that the peer has answered a check.
  void note_checked() noexcept { unanswered_.store(0, std::memory_order_relaxed); }

  /// Returns whether a check is due, and then begins the next interval. The more checks the peer
  /// has not answered, the longer the interval, because the peer may compute, and its sockets keep
  /// all checks.
  [[nodiscard]] bool is_due() noexcept {
    const count time = now();
    count due = due_.load(std::memory_order_relaxed);
    const count pause = interval.count() * (1 + unanswered_.load(std::memory_order_relaxed));
    return time >= due &&
           due_.compare_exchange_strong(due, time + pause, std::memory_order_relaxed);
  }

  [[nodiscard]] bool owes() const noexcept {
    return check_.load(std::memory_order_relaxed) || checked_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] bool owes_loss() const noexcept {
    return loss_until_.load(std::memory_order_relaxed) != 0;
  }
  /// Returns whether the peer was told that the link is broken.
  [[nodiscard]] bool has_told() const noexcept { return told_.load(std::memory_order_relaxed); }

  /// Calls `post(kind)` for each check and answer that is owed.
  /// Returns: 0, or the error of `post`.
  template <class Post>
  [[nodiscard]] long send(Post&& post) noexcept {
    if (check_.load(std::memory_order_relaxed)) {
      if (const long failed = post(notice_kind::check); failed != 0) return failed;
      check_.store(false, std::memory_order_relaxed);
      unanswered_.fetch_add(1, std::memory_order_relaxed);
    }
    if (checked_.load(std::memory_order_relaxed)) {
      if (const long failed = post(notice_kind::checked); failed != 0) return failed;
      checked_.store(false, std::memory_order_relaxed);
    }
    return 0;
  }
  /// Returns whether nothing could be sent for 3 s, so that the provider must have lost the
  /// connection and cannot remake it. Must be called after each `send` that returned -FI_EAGAIN
  /// while nothing is under way.
  [[nodiscard]] bool is_stuck() noexcept {
    const count time = now();
    const count last = last_try_.exchange(time, std::memory_order_relaxed);
    // A rank that has not tried meanwhile, because it computed, knows nothing of that time.
    if (time - last > interval.count()) stuck_since_.store(time, std::memory_order_relaxed);
    return time - stuck_since_.load(std::memory_order_relaxed) > longest_stuck.count();
  }
  /// Notes that the peer can be sent to, so `is_stuck` counts from now on.
  void note_sent() noexcept { last_try_.store(0, std::memory_order_relaxed); }

  /// Calls `post(kind)` for the notice that the link is broken, if it is owed.
  /// Returns: 0, or -FI_EAGAIN.
  template <class Post>
  [[nodiscard]] long send_loss(Post&& post) noexcept {
    const count until = loss_until_.load(std::memory_order_relaxed);
    if (until == 0) return 0;
    const long failed = post(notice_kind::lost);
    if (failed == -FI_EAGAIN && now() < until) return failed;
    if (failed == 0) told_.store(true, std::memory_order_relaxed);
    loss_until_.store(0, std::memory_order_relaxed);
    return 0;
  }

 private:
  using clock = std::chrono::steady_clock;
  using count = std::int64_t;
  static constexpr std::chrono::nanoseconds interval{std::chrono::milliseconds{250}};
  static constexpr std::chrono::nanoseconds patience{std::chrono::seconds{5}};
  static constexpr std::chrono::nanoseconds longest_stuck{std::chrono::seconds{3}};

  [[nodiscard]] static count now() noexcept {
    return std::chrono::nanoseconds{clock::now().time_since_epoch()}.count();
  }

  std::atomic<bool> check_{false};
  std::atomic<bool> checked_{false};
  std::atomic<bool> told_{false};
  std::atomic<std::int64_t> unanswered_{0};
  std::atomic<count> due_{0};
  std::atomic<count> last_try_{0};
  std::atomic<count> stuck_since_{0};
  std::atomic<count> loss_until_{0};  ///< time limit for telling the peer, or 0 if it need not be
                                      ///< told
};

}  // namespace peerbus::detail::ofi
