// SPDX-License-Identifier: MIT
#pragma once

#include <sched.h>

#include <cstdint>
#include <optional>

#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/wait.hpp>

namespace peerbus::detail::registered {

/// Returns the reason why the link to `peer` is broken, or closed by `peer`: peer_dead if `peer`
/// has ended, or if another rank has ended, so that `peer` left; otherwise unreachable. Waits
/// briefly, because a dying process loses its connections before its exit is visible.
inline errc why_broken(const membership& members, rank_id peer) noexcept {
  errc found = members.health(peer);
  if (found == errc::ok) {
    static_cast<void>(members.ends_within(peer, slowest_exit));
    found = members.health(peer);
  }
  return found == errc::ok ? errc::unreachable : found;
}

/// Takes completions of `net` until `done()` returns true. `done` may post something, and is not
/// called again afterwards. If the link `peer_link` completes nothing for `net.stall_timeout()`,
/// breaks it by `net.give_up(peer_link)`.
/// Returns: ok, unreachable, peer_dead, timed_out.
template <class Network, class Link, class Done>
[[nodiscard]] errc poll_until(Network& net, Link& peer_link, Done&& done) noexcept {
  const wait_thresholds& waiting = net.waiting();
  auto until = deadline::after(net.stall_timeout());
  auto next_check = deadline::after(waiting.check_interval);
  std::uint32_t completed = peer_link.completed();
  for (std::uint32_t i = 0;; ++i) {
    if (done()) return errc::ok;
    if (peer_link.failure().is_set()) return net.why_broken(peer_link);
    net.poll();
    if (i < waiting.tight + waiting.paused) {
      pause_core();
      continue;
    }
    if (next_check.expired()) {
      if (const errc found = net.members().health(peer_link.peer()); found != errc::ok)
        return done() ? errc::ok : found;
      next_check = deadline::after(waiting.check_interval);
      if (peer_link.completed() != completed) {
        completed = peer_link.completed();
        until = deadline::after(net.stall_timeout());
      }
    }
    if (until.expired()) {
      net.give_up(peer_link);
      return errc::timed_out;
    }
    if (i < waiting.tight + waiting.paused + waiting.yields) {
      ::sched_yield();
      continue;
    }
    if (done()) return errc::ok;  // The poll may have taken what it waits for.
    net.pause(next_look(until, waiting));
  }
}

/// Returns ok, or the reason why nothing can arrive any more from `awaited`, or from some rank if
/// it is empty.
template <class Network>
[[nodiscard]] errc health(const Network& net, std::optional<rank_id> awaited) noexcept {
  if (const errc found = net.members().health(awaited); found != errc::ok) return found;
  if (!net.any_broken()) return errc::ok;
  for (const rank_id peer : all_ranks{net.size()})
    if ((!awaited || *awaited == peer) && net.to(peer).failure().is_set() &&
        net.members().state(peer) == rank_state::running)
      return net.why_broken(net.to(peer));
  return errc::ok;
}

}  // namespace peerbus::detail::registered
