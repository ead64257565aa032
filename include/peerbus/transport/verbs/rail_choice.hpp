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

/// Returns the size of a chain at which it is posted, in bytes. If a rank has several devices, one
/// device gets no more at a time.
[[nodiscard]] inline std::size_t chain_bytes(const resources& own) noexcept {
  if (own.rails().size() == 1) return long_chain_bytes;
  return std::clamp<std::size_t>(own.options().stripe_bytes, 1, long_chain_bytes);
}

/// Returns the queue pair for the next piece of a write, if the rank has several devices. It
/// belongs to the device with the fewest bytes on their way to all peers. A chain that has begun is
/// continued, so that writes may join requests, and few bytes stay on one device, which saves a
/// fence. A long write uses all queue pairs of a device, a short write only the first.
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
