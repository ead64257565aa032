// SPDX-License-Identifier: MIT
#pragma once

#include <optional>

#include <peerbus/core/deadline.hpp>

namespace peerbus::collective {

/// Options of a collective operation.
struct call_options {
  std::optional<deadline> until{};  ///< empty: the communicator's default timeout
};

}  // namespace peerbus::collective
