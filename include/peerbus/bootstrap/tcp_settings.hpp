// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus {

/// The place of a rank in a group whose ranks may be on different hosts, and the rendezvous point
/// of the group.
struct tcp_settings {
  std::size_t rank = 0;  ///< the rank, below `size`
  std::size_t size = 1;  ///< the number of ranks of the group
  /// The position among the ranks of this host, if the launcher sets one. If empty, it is counted.
  std::optional<std::size_t> local_rank;
  /// The host of rank 0, by a name or an address (IPv4 or IPv6) that works on all ranks.
  std::string address = "127.0.0.1";
  /// The port at which rank 0 listens until all ranks have come. Groups that run at the same time
  /// need different ports.
  std::uint16_t port = 29500;
  /// The name of this rank's host, up to 63 bytes. Ranks with equal names count as ranks of one
  /// host. If empty, the running kernel identifies the host. Tests set names so that one host acts
  /// as several.
  std::string host;
  /// The secret of the group, the same on all ranks: at least 16 bytes that cannot be guessed. The
  /// key of all connections is made from it. If it is empty, only a loopback address is accepted,
  /// and any process of the host can join.
  std::string secret;
  /// Distinguishes the ranks of a job from those of an earlier job at the same address with the
  /// same secret. Up to 128 bytes, the same on all ranks. Ranks of another job cannot join. It is
  /// sent in plain text.
  std::string job;
  /// Connects each rank to every other rank. Ranks then learn of each other's end
  /// without rank 0, and the others can go on if any rank dies, also rank 0
  /// (`communicator::continue_without_the_dead` and `survivors`). Costs a connection for any two
  /// ranks. It must be the same on all ranks.
  bool mesh = false;
  /// The time for which a host may be out of reach of this rank before its ranks count as lost: 2 s
  /// to 1 h. The kernel asks a silent host for signs of life meanwhile. A process that computes, or
  /// is stopped, is within reach. The value may differ between ranks.
  std::chrono::milliseconds out_of_reach_after{15'000};
};

}  // namespace peerbus
