// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/collective/algorithm.hpp>

namespace peerbus::collective {

/// By which algorithm a team does an `all_reduce` of one size whose pages peers load, and why. The
/// same on all ranks.
struct shots_choice {
  algorithm by = algorithm::one_shot;  ///< `one_shot` or `two_shots`
  /// Whether both were measured in this team. Otherwise its options or the costs decide.
  bool is_measured = false;
  ///@{
  /// The time of a call, from when its last rank came to when its last rank left, in microseconds:
  /// the lower quartile when it was last measured, or 0.
  double one_shot_us = 0;
  double two_shots_us = 0;
  ///@}
};

}  // namespace peerbus::collective
