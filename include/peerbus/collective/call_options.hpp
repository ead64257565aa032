// SPDX-License-Identifier: MIT
#pragma once

#include <optional>

#include <peerbus/core/deadline.hpp>
#include <peerbus/core/lane.hpp>

namespace peerbus::collective {

/// Options of a collective operation.
struct call_options {
  std::optional<deadline> until{};  ///< empty: the communicator's default timeout
  /// One of several threads of this rank that carry out the operation together. All give the same
  /// arguments, of which those of lane 0 count. Lane 0 communicates; all lanes share each copy and
  /// each reduction of 16 KiB or more, by every algorithm. Peers need not know how many lanes a
  /// rank has. A second half takes lanes in `pending::finish`. Messages between two ranks, and
  /// first halves, take one lane: several give invalid_argument.
  lane as{};
};

}  // namespace peerbus::collective
