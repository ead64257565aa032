// SPDX-License-Identifier: MIT
#pragma once

#include <optional>

#include <peerbus/core/deadline.hpp>
#include <peerbus/core/lane.hpp>

namespace peerbus::collective {

/// Options of a collective operation.
struct call_options {
  std::optional<deadline> until{};  ///< empty: the communicator's default timeout
  /// The lane of the caller, if several threads of this rank carry out the operation together. All
  /// lanes give the same arguments, of which those of lane 0 are used. Lane 0 communicates; all
  /// lanes share each copy and each reduction of 16 KiB or more, by every algorithm. Peers need not
  /// know how many lanes a rank has. Lanes of a second half are given to `pending::finish`.
  /// Messages between two ranks, and first halves, take one lane: several give invalid_argument.
  lane as{};
};

}  // namespace peerbus::collective
