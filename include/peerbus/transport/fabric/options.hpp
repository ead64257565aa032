// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus {

/// Options of the `fabric` transport. When to change them: docs/transports.md.
struct fabric_options {
  /// Name of a libfabric provider, as `fi_info -l` lists them: tcp (any network), verbs, efa, cxi.
  /// All ranks name the same. tcp connects each pair of ranks (FI_EP_MSG), so that a signal follows
  /// its puts at once; with the others, as with tcp;ofi_rxm, which send datagrams (FI_EP_RDM), it
  /// is sent when its puts have been delivered, which takes a round trip more, and a call of the
  /// peer.
  std::string provider = "tcp";
  /// Name of a domain of the provider, as `fi_info -p NAME` lists them; for tcp, of a network
  /// interface. If it is empty, the first that fits is taken: the loopback interface if all ranks
  /// share a host, else the one over which the ranks met, else one with an IPv4 address.
  std::string domain{};

  /// Requests that may be in flight to one peer, 2 to 16384. A call that finds as many waits for
  /// room. Over connections, a put is in flight until the system has taken it, else until it is
  /// delivered.
  std::uint32_t queue_depth = 64;
  /// The longest time that such a call, `flush` or `quiet` waits for a peer that takes nothing. It
  /// then gives the connection up and returns `timed_out`.
  std::chrono::milliseconds stall_timeout{30'000};
  /// The time limit for connecting all ranks.
  std::chrono::milliseconds setup_timeout{30'000};

  /// The pieces in which puts and gets of bulk windows are sent, in bytes, 4096 or more. Smaller
  /// ones let a latency operation wait for less, larger ones cost less.
  std::size_t bulk_slice = std::size_t{128} << 10U;
  /// The bytes of bulk puts that one peer may have been sent and not taken yet, at least
  /// `bulk_slice`. What exceeds them waits at this rank, where it delays nothing.
  std::size_t bulk_in_flight = std::size_t{4} << 20U;
};

}  // namespace peerbus
