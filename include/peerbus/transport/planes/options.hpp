// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <string>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus {

/// Options of the `planes` transport.
struct planes_options {
  /// The name of the caller's group of near ranks, such as the name of its supernode. Ranks that
  /// give the same name are near each other and must be able to map each other's memory. If it is
  /// empty, the group is the ranks of the caller's host (`bootstrap::near_ranks`). Either all ranks
  /// name their group, or none does.
  std::string group{};
  /// The time limit for making both planes.
  std::chrono::milliseconds setup_timeout{30'000};
};

}  // namespace peerbus
