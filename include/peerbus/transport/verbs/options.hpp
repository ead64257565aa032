// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus {

/// Options of the `verbs` transport. The defaults find a device, a port and a GID. When to change
/// them: docs/transports.md.
struct verbs_options {
  /// Name of the device, as `ibv_devices` lists them; empty: the first with an active port on
  /// the NUMA node of the calling thread, or else on another.
  std::string device{};
  /// Names of several devices, 2 to 4, instead of `device`. Puts to each peer are spread over them.
  /// All ranks name the same number of devices. The first devices of all ranks are connected with
  /// each other, the second with each other, and so on.
  std::vector<std::string> devices{};
  /// Number of the port, from 1; 0: the first that is active.
  std::uint8_t port = 0;
  /// Index of the port's address to use. -1 takes, for RoCE, the first RoCE v2 address, an IPv4 one
  /// if there is any; for InfiniBand, 0.
  int gid_index = -1;

  /// Queue pairs to each peer on each device, the same number on all ranks: 1 to 9 on all devices
  /// together. If there are several, large puts are spread over them.
  std::uint32_t queue_pairs_per_peer = 1;
  /// Puts of this many bytes or more are spread over the queue pairs.
  std::size_t stripe_bytes = std::size_t{256} << 10;
  /// Requests that may be in flight on one queue pair, 2 to 16384. A call that finds it full waits
  /// for room. One below a power of two, because drivers round up.
  std::uint32_t queue_depth = 31;
  /// The longest time that such a call waits before it returns `timed_out`.
  std::chrono::milliseconds stall_timeout{30'000};

  /// A rank that waits for a peer asks its device this often whether the peer can still be reached,
  /// so that a rank with nothing to send notices a broken link too.
  std::chrono::milliseconds probe_interval{1'000};
  /// The time limit for connecting all ranks.
  std::chrono::milliseconds setup_timeout{30'000};

  /// A packet is sent again if no acknowledgement comes within 4.096 us x 2^ack_timeout (0 to 31,
  /// 0: never), up to `retries` (0 to 7) times; then the connection is broken.
  std::uint8_t ack_timeout = 14;
  /// How often a packet is sent again, 0 to 7; see `ack_timeout`.
  std::uint8_t retries = 7;
  /// The InfiniBand service level of connections for latency traffic, 0 to 15. Over RoCE, the
  /// priority of VLAN frames.
  int service_level = 0;
  /// The traffic class of these in the global route header, 0 to 255; over RoCE v2 its upper six
  /// bits are the DSCP.
  int traffic_class = 0;
  /// As `service_level`, of connections for bulk traffic. -1: the same.
  int bulk_service_level = -1;
  /// As `traffic_class`, of connections for bulk traffic. -1: the same.
  int bulk_traffic_class = -1;
  /// The pieces in which puts and gets of bulk windows are sent, in bytes, 4096 or more.
  std::size_t bulk_slice = std::size_t{128} << 10;
  /// The bytes of bulk puts that this rank has on their way to all peers, at least `bulk_slice`.
  /// What exceeds them waits at this rank, except for one slice per peer.
  std::size_t bulk_in_flight = std::size_t{1} << 20;
  /// Lets the PCI bus reorder the device's writes to windows. Correct with this transport, whose
  /// signals are completions; faster on some hosts.
  bool relaxed_ordering = false;
};

}  // namespace peerbus
