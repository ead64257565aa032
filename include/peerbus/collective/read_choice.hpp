// SPDX-License-Identifier: MIT
#pragma once

namespace peerbus::collective {

/// The choice of a team between reading and staging rows of one size, and the reason. The same on
/// all ranks.
struct read_choice {
  /// True if peers read rows in the private memory of their rank, in one copy. Otherwise rows are
  /// staged in pages.
  bool reads_private = false;
  /// True if both ways were measured in this team. Otherwise `team_options::private_bytes` or a
  /// rule decides.
  bool is_measured = false;
  ///@{
  /// The time of a call in microseconds, from the arrival of its last rank until its last rank has
  /// left: the lower quartile of the latest measurement, or 0.
  double staged_us = 0;
  double read_us = 0;
  ///@}
};

}  // namespace peerbus::collective
