// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <limits>

#include <peerbus/core/error.hpp>
#include <peerbus/transport/verbs/link.hpp>
#include <peerbus/transport/verbs/network.hpp>
#include <peerbus/transport/verbs/pending_calls.hpp>

namespace peerbus::detail::rdma {

/// The weight of a call that does not wait for others to fill a slice.
inline constexpr std::size_t at_once = std::numeric_limits<std::size_t>::max();

/// Adds a call, which `set(call)` fills in, behind those that are pending to `to`, whose lock the
/// caller has. Waits if there is no room. Sends what may leave now if the call has `bytes` of a
/// slice or more; shorter ones are collected for one doorbell.
/// Returns: ok, timed_out, unreachable, peer_dead.
template <class Set>
[[nodiscard]] errc defer(network& net, link& to, outgoing& out, std::size_t bytes,
                         Set&& set) noexcept {
  pending_calls& calls = to.pending();
  if (to.failure().is_set()) return net.why_broken(to);
  const errc code = net.poll_until(to, [&]() noexcept {
    if (!calls.has_room()) net.send_slices_to(to, out);
    return calls.has_room();
  });
  if (code != errc::ok) return code;
  set(calls.next());
  calls.note_added();
  if (bytes >= net.own().options().bulk_slice) net.send_slices_to(to, out);
  return errc::ok;
}

}  // namespace peerbus::detail::rdma
