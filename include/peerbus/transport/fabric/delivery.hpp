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

/// Calls `checked(link, outgoing)` for each peer that could still take something.
/// Returns: whether all calls returned true.
template <class Check>
[[nodiscard]] bool for_all_open(const membership& members, std::span<link> links,
                                Check&& checked) noexcept {
  bool all = true;
  for (link& to : links) {
    if (to.peer() == members.rank() || to.failure().is_set() || to.has_left() ||
        members.state(to.peer()) != rank_state::running)
      continue;
    const auto out = to.out().lock();
    all = checked(to, *out) && all;
  }
  return all;
}

/// Sends what is owed to peers, such as the acknowledgements that they ask for.
inline void answer_all(completions& arriving, std::span<link> links) noexcept {
  if (!arriving.take_asked()) return;
  for (link& to : links) {
    if (!to.owes_answer()) continue;
    auto out = to.out().try_lock();
    // A thread that sends to the peer has the link, or there is no room: at the next poll.
    const long failed = out ? to.answer(**out) : -FI_EAGAIN;
    if (failed == -FI_EAGAIN)
      arriving.note_asked();
    else if (failed != 0)
      arriving.break_link(to, static_cast<int>(-failed));
  }
}

/// Returns whether every peer has acknowledged that it has what was put to it. Asks for the
/// acknowledgement.
[[nodiscard]] inline bool all_delivered(const membership& members, std::span<link> links) noexcept {
  return for_all_open(members, links, [](link& to, outgoing& out) noexcept {
    return to.pending().is_empty() && to.requests().is_idle() && to.request_ack(out) == 0 &&
           to.has_acked(out.ack);
  });
}

/// Returns whether some peer that runs was told that its link is broken, or is to be told.
[[nodiscard]] inline bool any_told(const membership& members, std::span<link> links) noexcept {
  for (const link& to : links)
    if ((to.checks().owes_loss() || to.checks().has_told()) &&
        members.state(to.peer()) == rank_state::running)
      return true;
  return false;
}

/// Tells a peer that this end closes, when all before has been sent. Returns whether the peer has
/// taken everything, or need not be waited for after `patience`.
[[nodiscard]] inline bool is_over(const resources& own, completions& arriving, link& to,
                                  outgoing& out, deadline patience) noexcept {
  if (!out.is_closed) {
    if (!to.pending().is_empty()) return false;
    if (!own.relies_on_order() && !to.requests().is_idle()) return false;
    notice last;
    last.kind = notice_kind::leave;
    last.value = out.asked + 1;
    const long failed = to.post(out, last, nullptr, true);
    if (failed == -FI_EAGAIN) return false;
    if (failed != 0) arriving.break_link(to, static_cast<int>(-failed));
    ++out.asked;
    out.is_closed = true;
  }
  return to.requests().is_idle() && (to.has_acked(out.asked) || patience.expired());
}

/// Takes what arrives, by `poll()`, until each peer has answered that it has everything, or has
/// left too: a connection that closes while something unread lies at this end may lose what lies
/// unread at the other. Waits for peers as `is_over` says, and no longer than 5 s.
template <class Poll>
void leave(const membership& members, const resources& own, completions& arriving,
           std::span<link> links, Poll&& poll) noexcept {
  const auto until = deadline::after(std::chrono::seconds{5});
  const auto patience = deadline::after(std::chrono::milliseconds{250});
  const auto is_done = [&](link& to, outgoing& out) noexcept {
    return is_over(own, arriving, to, out, patience);
  };
  while ((!for_all_open(members, links, is_done) && !until.expired()) ||
         (any_told(members, links) && !patience.expired())) {
    poll();
    ::sched_yield();
  }
}

}  // namespace peerbus::detail::ofi
