// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus {

/// Options of the `fabric` transport. docs/transports.md says when to change them.
struct fabric_options {
  /// The name of a libfabric provider, as `fi_info -l` lists them: tcp (any network), verbs, efa,
  /// cxi. All ranks name the same provider. tcp connects each pair of ranks (FI_EP_MSG), so a
  /// signal follows its puts at once. The other providers, and tcp;ofi_rxm, send datagrams
  /// (FI_EP_RDM). Their signals are sent after the puts have been delivered, which takes one more
  /// round trip, and the peer must make a call of the transport meanwhile.
  std::string provider = "tcp";
  /// The name of a domain of the provider, as `fi_info -p NAME` lists them; for tcp, of a network
  /// interface. If it is empty, the first that fits is used: the loopback interface if all ranks
  /// share a host, otherwise the interface over which the ranks met, otherwise one with an IPv4
  /// address.
  std::string domain{};

  /// The largest number of requests in flight to one peer, 2 to 16384. A call that would exceed it
  /// waits for room. Over connections, a put is in flight until the system has taken it, otherwise
  /// until it is delivered.
  std::uint32_t queue_depth = 64;
  /// The longest time that a call, `flush` or `quiet` waits for a peer that takes nothing. It then
  /// gives the connection up and returns `timed_out`.
  std::chrono::milliseconds stall_timeout{30'000};
  /// The time limit for connecting all ranks.
  std::chrono::milliseconds setup_timeout{30'000};

  /// The size of the pieces of bulk puts and gets, in bytes, 4096 or more. Smaller pieces delay
  /// latency operations less, larger pieces cost less.
  std::size_t bulk_slice = std::size_t{128} << 10U;
  /// The largest number of bytes of bulk puts in flight to one peer, at least `bulk_slice`. Further
  /// puts wait at this rank, where they delay nothing.
  std::size_t bulk_in_flight = std::size_t{4} << 20U;
};

}  // namespace peerbus
