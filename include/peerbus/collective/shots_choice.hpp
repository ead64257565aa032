// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/collective/algorithm.hpp>

namespace peerbus::collective {

/// The algorithm of a team for an `all_reduce` of one size whose pages peers load, and the reason,
/// equal on all ranks.
struct shots_choice {
  algorithm by = algorithm::one_shot;  ///< `one_shot` or `two_shots`
  /// True if both algorithms were measured in this team. Otherwise options or costs decide.
  bool is_measured = false;
  ///@{
  /// The time of a call in microseconds, from the arrival of its last rank until its last rank has
  /// left: the lower quartile of the latest measurement, or 0.
  double one_shot_us = 0;
  double two_shots_us = 0;
  ///@}
};

}  // namespace peerbus::collective
