// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <peerbus/transport/verbs/link.hpp>
#include <peerbus/transport/verbs/resources.hpp>

namespace peerbus::detail::rdma {

/// The size of a chain that is worth a separate doorbell, in bytes.
inline constexpr std::size_t long_chain_bytes = std::size_t{64} << 10U;

/// Returns the size in bytes at which a chain of requests is posted. If a rank has several devices,
/// the size is no more than the option `stripe_bytes`, so that writes are divided among the
/// devices.
[[nodiscard]] inline std::size_t chain_bytes(const resources& own) noexcept {
  if (own.rails().size() == 1) return long_chain_bytes;
  return std::clamp<std::size_t>(own.options().stripe_bytes, 1, long_chain_bytes);
}

/// Chooses the queue pair for the next piece of a write, and makes it the current queue pair of
/// `out`. For ranks with several devices. If the current chain has requests, it is continued. Then
/// a write may join an earlier request, and a short sequence of writes stays on one device, which
/// saves a fence. Otherwise the device with the fewest bytes in flight to all peers is chosen. A
/// long write uses all queue pairs of the device, a short write only the first.
/// Returns: the number of the queue pair.
[[nodiscard]] inline std::size_t choose_queue(const resources& own, const link& peer_link,
                                              outgoing& out, bool is_long) noexcept {
  if (!out.queues[out.current].chain().empty()) return out.current;
  const auto rails = own.rails();
  std::size_t best = 0;
  std::uint64_t least = rails[0]->load().outstanding();
  for (std::size_t i = 1; i < rails.size(); ++i)
    if (const std::uint64_t load = rails[i]->load().outstanding(); load < least) {
      best = i;
      least = load;
    }
  out.current = best;
  if (is_long)
    for (std::size_t q = best; q < peer_link.pairs().size(); q += rails.size())
      if (peer_link.in_flight(q) < peer_link.in_flight(out.current)) out.current = q;
  return out.current;
}

}  // namespace peerbus::detail::rdma
