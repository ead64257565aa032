// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus.h>

#include <memory>
#include <optional>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/transport/any_transport.hpp>

#include "interruptible.hpp"

namespace peerbus::c_library {

/// The transport of every communicator of this library.
using bus = any_transport;

/// A transport, and what it stands on beside the bootstrap for which it was chosen.
struct chosen_bus {
  std::unique_ptr<bootstrap> of_host;  ///< which passes descriptors, if the other does not
  const char* name = "";
  std::optional<bus> made;  ///< until a communicator takes it
};

/// Makes the transport that the options name, for the ranks of `boot`. Collective.
/// Throws, on all ranks: `error` mismatch if they name different ones, unsupported if one rank
/// cannot load its library or a host is not shared, and what the transport throws.
chosen_bus choose_bus(bootstrap& boot, const peerbus_comm_options& options,
                      const std::shared_ptr<interruption>& stop, deadline until);

}  // namespace peerbus::c_library
