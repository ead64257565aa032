// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus {

namespace detail {
/// The largest number of ranks of a group that a launcher starts.
inline constexpr std::size_t most_ranks = 65536;
}  // namespace detail

/// The place of a rank in a group that a launcher starts on one host, and the rendezvous point of
/// the group.
struct launch_settings {
  std::size_t rank = 0;  ///< the rank, below `size`
  std::size_t size = 1;  ///< the number of ranks of the group
  /// The position among the ranks of this host. Launchers number accelerators by it.
  std::size_t local_rank = 0;
  /// The address of the rendezvous point. Together with `port` it only forms a part of a name,
  /// because all ranks are on one host: nothing is resolved or opened on the network. Groups that
  /// run at the same time need different addresses or ports.
  std::string address = "127.0.0.1";
  /// The port of the rendezvous point; see `address`.
  std::uint16_t port = 29500;
  /// Distinguishes the ranks of a job from those of other jobs of one user at the same rendezvous
  /// point. It must be the same on all ranks.
  std::string job;
};

}  // namespace peerbus
