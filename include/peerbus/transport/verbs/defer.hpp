// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <limits>

#include <peerbus/core/error.hpp>
#include <peerbus/transport/verbs/link.hpp>
#include <peerbus/transport/verbs/network.hpp>
#include <peerbus/transport/verbs/pending_calls.hpp>

namespace peerbus::detail::rdma {

/// The number of bytes to pass to `defer` for a call that is sent without waiting until a slice is
/// full.
inline constexpr std::size_t at_once = std::numeric_limits<std::size_t>::max();

/// Adds a call, which `set(call)` fills in, after the calls that are pending to `peer_link`. The
/// caller holds the lock of `peer_link`. Waits if there is no room. If the call has at least
/// `bulk_slice` bytes, sends the slices that may leave now. Shorter calls are collected for one
/// doorbell.
/// Returns: ok, timed_out, unreachable, peer_dead.
template <class Set>
[[nodiscard]] errc defer(network& net, link& peer_link, outgoing& out, std::size_t bytes,
                         Set&& set) noexcept {
  pending_calls& calls = peer_link.pending();
  if (peer_link.failure().is_set()) return net.why_broken(peer_link);
  const errc code = net.poll_until(peer_link, [&]() noexcept {
    if (!calls.has_room()) net.send_slices_to(peer_link, out);
    return calls.has_room();
  });
  if (code != errc::ok) return code;
  set(calls.next());
  calls.note_added();
  if (bytes >= net.own().options().bulk_slice) net.send_slices_to(peer_link, out);
  return errc::ok;
}

}  // namespace peerbus::detail::rdma
