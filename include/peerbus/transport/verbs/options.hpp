// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus {

/// Options of the `verbs` transport. The defaults find a device, a port and a GID.
/// docs/transports.md says when to change them.
struct verbs_options {
  /// The name of the device, as `ibv_devices` lists them; empty: the first with an active port on
  /// the NUMA node of the calling thread, or otherwise on another node.
  std::string device{};
  /// The names of several devices, 2 to 4, instead of `device`. Puts to each peer are spread over
  /// them. All ranks name the same number of devices. The first devices of all ranks are connected
  /// with each other, then the second devices, and so on.
  std::vector<std::string> devices{};
  /// The number of the port, from 1; 0: the first active port.
  std::uint8_t port = 0;
  /// The index of the port's address to use. -1: for RoCE the first RoCE v2 address, an IPv4
  /// address if there is one; for InfiniBand 0.
  int gid_index = -1;

  /// The number of queue pairs to each peer on each device, the same on all ranks: 1 to 9 on all
  /// devices together. If there are several, large puts are spread over them.
  std::uint32_t queue_pairs_per_peer = 1;
  /// The least size of puts that are spread over the queue pairs, in bytes. With several devices,
  /// at least 1, and also the largest piece for one device, up to 64 KiB.
  std::size_t stripe_bytes = std::size_t{256} << 10;
  /// The largest number of requests in flight on one queue pair, 2 to 16384. A call that finds it
  /// full waits for room. The default is one below a power of two, because drivers round up.
  std::uint32_t queue_depth = 31;
  /// The longest time for which a connection may complete nothing while a call waits for it. The
  /// call then gives the connection up and returns `timed_out`.
  std::chrono::milliseconds stall_timeout{30'000};

  /// The interval at which a rank that waits for a peer asks its device whether the peer can still
  /// be reached, so that a rank with nothing to send also notices a broken link.
  std::chrono::milliseconds probe_interval{1'000};
  /// The time limit for connecting all ranks.
  std::chrono::milliseconds setup_timeout{30'000};

  /// The time after which a packet without acknowledgement is sent again: 4.096 us x 2^ack_timeout
  /// (0 to 31, 0: never). After `retries` repetitions the connection is broken.
  std::uint8_t ack_timeout = 14;
  /// The number of times that a packet is sent again, 0 to 7; see `ack_timeout`.
  std::uint8_t retries = 7;
  /// The InfiniBand service level of connections for latency traffic, 0 to 15. Over RoCE, the
  /// priority of VLAN frames.
  int service_level = 0;
  /// The traffic class of connections for latency traffic in the global route header, 0 to 255.
  /// Over RoCE v2 its upper six bits are the DSCP.
  int traffic_class = 0;
  /// The service level of connections for bulk traffic. -1: that of `service_level`.
  int bulk_service_level = -1;
  /// The traffic class of connections for bulk traffic. -1: that of `traffic_class`.
  int bulk_traffic_class = -1;
  /// The size of the pieces of bulk puts and gets, in bytes, 4096 or more.
  std::size_t bulk_slice = std::size_t{128} << 10;
  /// The largest number of bytes of bulk puts in flight from this rank to all peers, at least
  /// `bulk_slice`. Further puts wait at this rank, except for one slice per peer.
  std::size_t bulk_in_flight = std::size_t{1} << 20;
  /// True if the PCI bus may reorder the device's writes to windows. This is correct with this
  /// transport, whose signals are completions, and faster on some hosts.
  bool relaxed_ordering = false;
};

}  // namespace peerbus
