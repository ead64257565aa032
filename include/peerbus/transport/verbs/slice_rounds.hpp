// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>

#include <peerbus/transport/registered/spin_guard.hpp>
#include <peerbus/transport/verbs/link.hpp>
#include <peerbus/transport/verbs/resources.hpp>
#include <peerbus/transport/verbs/slices.hpp>

namespace peerbus::detail::rdma {

/// Decides which bulk calls leave. A rank has at any time no more than `bulk_in_flight` bytes of
/// bulk puts in flight. In addition, one slice may be in flight to each peer to which nothing else
/// is in flight. So no peer waits for another peer that takes nothing.
///
/// `net.post(link, queue)` posts the chain of a queue pair, and returns as `send_queue::post`.
///
/// Threads: any.
class slice_rounds {
 public:
  slice_rounds(const resources& own, std::span<link> links) noexcept : own_{&own}, links_{links} {}

  [[nodiscard]] bool has_pending() const noexcept {
    for (const link& peer_link : links_)
      if (!peer_link.pending().is_empty()) return true;
    return false;
  }

  /// Counts a poll of latency traffic. Returns whether bulk traffic is polled as well: at each
  /// 1024th poll, which is about each 0.1 ms of a wait that spins. Otherwise a rank with short
  /// waits would send no bulk traffic. Threads may lose counts of each other.
  [[nodiscard]] bool are_due() noexcept {
    const std::uint32_t polls = polls_.load(std::memory_order_relaxed) + 1;
    polls_.store(polls, std::memory_order_relaxed);
    return polls % 1024 == 0;
  }

  /// Sends the slices that may leave now of the calls that are pending to `peer_link`. The caller
  /// holds the lock of `peer_link`.
  template <class Network>
  void send_to(Network& net, link& peer_link, outgoing& out) noexcept {
    const std::lock_guard turn{sending_};
    for (std::size_t left = most_slices(); left != 0 && send_slice(net, peer_link, out); --left) {
    }
  }
  /// Sends slices to all peers, in turns, as long as slices may leave. Skips a link that another
  /// thread has locked, because that thread calls `send_to` itself. Does nothing if another thread
  /// is sending.
  template <class Network>
  void send_all(Network& net) noexcept {
    if (!has_pending()) return;
    const std::unique_lock turn{sending_, std::try_to_lock};
    if (!turn) return;
    bool has_sent = true;
    for (std::size_t left = most_slices(); left != 0 && has_sent; --left) {
      has_sent = false;
      for (std::size_t i = 0; i < links_.size(); ++i) {
        link& peer_link = links_[(first_served_ + i) % links_.size()];
        if (peer_link.pending().is_empty()) continue;
        if (auto out = peer_link.out().try_lock())
          has_sent = send_slice(net, peer_link, **out) || has_sent;
      }
      first_served_ = (first_served_ + 1) % links_.size();  // The first finds most room.
    }
  }

 private:
  /// Sends a slice to the peer of `peer_link`, if it may leave.
  /// Returns: whether anything was sent.
  template <class Network>
  [[nodiscard]] bool send_slice(Network& net, link& peer_link, outgoing& out) noexcept {
    if (peer_link.pending().is_empty() || peer_link.failure().is_set()) return false;
    const verbs_options& options = own_->options();
    if (peer_link.in_flight() != 0 &&
        own_->outstanding() + options.bulk_slice > options.bulk_in_flight)
      return false;
    return slice{*own_, peer_link, out,
                 [&](send_queue& queue) noexcept { return net.post(peer_link, queue); }}
        .send();
  }
  /// Returns the largest number of rounds in one poll, so that a flood does not keep a thread
  /// there.
  [[nodiscard]] std::size_t most_slices() const noexcept {
    return own_->options().bulk_in_flight / own_->options().bulk_slice;
  }

  const resources* own_;
  std::span<link> links_;
  registered::spin_guard sending_;  ///< taken after the lock of a link, or while links are tried
  std::size_t first_served_ = 0;    ///< guarded by `sending_`
  std::atomic<std::uint32_t> polls_{0};
};

}  // namespace peerbus::detail::rdma
