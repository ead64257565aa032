// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace peerbus {

/// A rank's place in a group that somebody else starts, and where the group meets.
struct launch_settings {
  std::size_t rank = 0;
  std::size_t size = 1;
  /// Position among the ranks of this host, which is what launchers count accelerators by.
  std::size_t local_rank = 0;
  /// The meeting point. A name only, as all ranks are on one host: nothing is resolved or opened
  /// on the network. Groups that run at the same time need different ones.
  std::string address = "127.0.0.1";
  std::uint16_t port = 29500;
  /// Tells groups of one user apart where the launcher names its job but no port.
  std::string job;
};

}  // namespace peerbus
