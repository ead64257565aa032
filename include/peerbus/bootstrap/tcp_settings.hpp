// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace peerbus {

/// A rank's place in a group whose ranks may be on different hosts, and where the group meets.
struct tcp_settings {
  std::size_t rank = 0;
  std::size_t size = 1;
  /// Position among the ranks of this host, if somebody has decided on one; counted otherwise.
  std::optional<std::size_t> local_rank;
  /// The host of rank 0, by name or address (IPv4 or IPv6), as all ranks can reach it.
  std::string address = "127.0.0.1";
  /// Where rank 0 listens until all have come. Groups that run at the same time need different
  /// ones.
  std::uint16_t port = 29500;
  /// Names the host that this rank is on, in up to 63 bytes. Ranks with equal names count as ranks
  /// of one host. Empty: the running kernel tells. Tests name hosts to act as several on one.
  std::string host;
  /// The secret of the group, the same on all ranks: at least 16 bytes that cannot be guessed.
  /// The key of all connections is made from it. Without a secret only a loopback address is
  /// accepted, and any process of the host can join.
  std::string secret;
};

}  // namespace peerbus
