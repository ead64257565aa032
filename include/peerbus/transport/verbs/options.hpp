// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace peerbus {

/// How `verbs` uses the network. The defaults find a device, a port and a GID; what they mean and
/// when to change them: docs/transports.md.
struct verbs_options {
  /// Name of the device, as `ibv_devices` lists them; empty: the first with an active port.
  std::string device{};
  /// Number of the port, from 1; 0: the first that is active.
  std::uint8_t port = 0;
  /// Which of the port's addresses to use; -1: for RoCE, the first RoCE v2 address, an IPv4 one if
  /// there is any; for InfiniBand, 0.
  int gid_index = -1;

  /// Queue pairs to each peer, 1 to 9, alike on all ranks. More than one spread large puts.
  std::uint32_t queue_pairs_per_peer = 1;
  /// Puts of this many bytes or more are spread over the queue pairs.
  std::size_t stripe_bytes = std::size_t{256} << 10;
  /// Requests that may be on their way on one queue pair, 2 to 16384; a call that finds it full
  /// waits for room. One below a power of two, as drivers round up.
  std::uint32_t queue_depth = 31;
  /// How long such a call waits at most before it returns `timed_out`.
  std::chrono::milliseconds stall_timeout{30'000};

  /// A rank that waits for a peer asks its device this often whether it can still be reached, so
  /// that a broken link is noticed by those too who have nothing to send.
  std::chrono::milliseconds probe_interval{1'000};
  /// How long the ranks may take to connect.
  std::chrono::milliseconds setup_timeout{30'000};

  /// A packet is sent again if no acknowledgement comes within 4.096 us x 2^ack_timeout (0 to 31,
  /// 0: never), up to `retries` (0 to 7) times; then the connection is broken.
  std::uint8_t ack_timeout = 14;
  std::uint8_t retries = 7;
  std::uint8_t service_level = 0;
  std::uint8_t traffic_class = 0;
  /// Lets the PCI bus reorder the device's writes to windows. Correct with this transport, whose
  /// signals are completions; faster on some hosts.
  bool relaxed_ordering = false;
};

}  // namespace peerbus
