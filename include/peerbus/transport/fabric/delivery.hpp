// SPDX-License-Identifier: MIT
#pragma once

#include <sched.h>

#include <chrono>
#include <span>

#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/transport/fabric/completions.hpp>
#include <peerbus/transport/fabric/libfabric.hpp>
#include <peerbus/transport/fabric/link.hpp>
#include <peerbus/transport/fabric/notice.hpp>
#include <peerbus/transport/fabric/resources.hpp>

namespace peerbus::detail::ofi {

/// Calls `checked(link, outgoing)` for each other running peer whose link is whole and that has not
/// left.
/// Returns: whether all calls returned true.
template <class Check>
[[nodiscard]] bool for_all_open(const membership& members, std::span<link> links,
                                Check&& checked) noexcept {
  bool all = true;
  for (link& peer_link : links) {
    if (peer_link.peer() == members.rank() || peer_link.failure().is_set() ||
        peer_link.has_left() || members.state(peer_link.peer()) != rank_state::running)
      continue;
    const auto out = peer_link.out().lock();
    all = checked(peer_link, *out) && all;
  }
  return all;
}

/// Sends the notices owed to peers, such as the acknowledgements that peers ask for. A notice waits
/// for the next poll if another thread uses the link or if the provider has no room. Breaks a link
/// that fails.
inline void answer_all(completions& arriving, std::span<link> links) noexcept {
  if (!arriving.take_asked()) return;
  for (link& peer_link : links) {
    if (!peer_link.owes_answer()) continue;
    auto out = peer_link.out().try_lock();
    // A thread that sends to the peer has the link, or there is no room: at the next poll.
    const long failed = out ? peer_link.answer(**out) : -FI_EAGAIN;
    if (failed == -FI_EAGAIN)
      arriving.note_asked();
    else if (failed != 0)
      arriving.break_link(peer_link, static_cast<int>(-failed));
  }
}

/// Asks peers for acknowledgements. Returns whether every reachable peer has acknowledged all puts.
[[nodiscard]] inline bool all_delivered(const membership& members, std::span<link> links) noexcept {
  return for_all_open(members, links, [](link& peer_link, outgoing& out) noexcept {
    return peer_link.pending().is_empty() && peer_link.requests().is_idle() &&
           peer_link.request_ack(out) == 0 && peer_link.has_acked(out.ack);
  });
}

/// Returns whether a running peer was told, or is yet to be told, that its link is broken.
[[nodiscard]] inline bool any_told(const membership& members, std::span<link> links) noexcept {
  for (const link& peer_link : links)
    if ((peer_link.checks().owes_loss() || peer_link.checks().has_told()) &&
        members.state(peer_link.peer()) == rank_state::running)
      return true;
  return false;
}

/// Tells a peer once that this end closes, as soon as all pending operations to the peer have been
/// sent.
/// Returns: whether this end may close. The peer must have acknowledged that it has everything, or
/// `patience` must have expired. All requests to the peer must be complete in both cases.
[[nodiscard]] inline bool is_over(const resources& own, completions& arriving, link& peer_link,
                                  outgoing& out, deadline patience) noexcept {
  if (!out.is_closed) {
    if (!peer_link.pending().is_empty()) return false;
    if (!own.connects() && !peer_link.requests().is_idle()) return false;
    notice last;
    last.kind = notice_kind::leave;
    last.value = out.asked + 1;
    const long failed = peer_link.post(out, last, nullptr, true);
    if (failed == -FI_EAGAIN) return false;
    if (failed != 0) arriving.break_link(peer_link, static_cast<int>(-failed));
    ++out.asked;
    out.is_closed = true;
  }
  return peer_link.requests().is_idle() && (peer_link.has_acked(out.asked) || patience.expired());
}

/// Tells each peer that this end closes, and waits until `is_over` is true for each peer, for up to
/// 5 s. Does not wait for peers that have left or ended, or whose link is broken. If this end tells
/// a running peer that its link is broken, gives the peer up to 250 ms. Calls `poll()` meanwhile to
/// take arrivals, because a connection that closes with unread data at this end may lose unread
/// data at the other end.
template <class Poll>
void leave(const membership& members, const resources& own, completions& arriving,
           std::span<link> links, Poll&& poll) noexcept {
  const auto until = deadline::after(std::chrono::seconds{5});
  const auto patience = deadline::after(std::chrono::milliseconds{250});
  const auto is_done = [&](link& peer_link, outgoing& out) noexcept {
    return is_over(own, arriving, peer_link, out, patience);
  };
  while ((!for_all_open(members, links, is_done) && !until.expired()) ||
         (any_told(members, links) && !patience.expired())) {
    poll();
    ::sched_yield();
  }
}

}  // namespace peerbus::detail::ofi
