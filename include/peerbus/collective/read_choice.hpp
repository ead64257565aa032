// SPDX-License-Identifier: MIT
#pragma once

namespace peerbus::collective {

/// How a team carries out an operation on rows of one size, and why. The same on all ranks.
struct read_choice {
  /// Whether peers read rows in the private memory of their rank, in one copy. Otherwise rows are
  /// staged in pages.
  bool reads_private = false;
  /// Whether both ways were measured in this team. Otherwise `team_options::private_bytes` or a
  /// rule decides.
  bool is_measured = false;
  ///@{
  /// The time of a call, from when its last rank came to when its last rank left, in microseconds:
  /// the lower quartile when it was last measured, or 0.
  double staged_us = 0;
  double read_us = 0;
  ///@}
};

}  // namespace peerbus::collective
