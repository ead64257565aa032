// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus.h>

#include <cstdint>
#include <memory>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/log.hpp>
#include <peerbus/transport/any_transport.hpp>

#include "interruptible.hpp"
#include "metrics.hpp"

namespace peerbus::c_library {

/// The transport of every communicator of this library.
using bus = any_transport;

/// Returns the options of a communicator in the form of C++.
communicator_options options_of(const peerbus_comm_options& given);

/// What was chosen: the name of a transport, what it stands on beside the bootstrap for which it
/// was chosen, and the log that the environment asks for. Outlives the transport.
struct bus_choice {
  std::unique_ptr<bootstrap> of_host;  ///< which passes descriptors, if the other does not
  const char* name = "";
  stderr_log log;
  std::string trace_folder;         ///< in which a trace is wanted; empty: none is
  std::shared_ptr<metrics> counts;  ///< null if none are asked for
  std::uint64_t first_view = 0;     ///< the number that metrics give the communicator's first view
};

/// Does what making the transport that the options name takes long for the first time in a process,
/// so that a group which the process joins does not wait for it.
void prepare_bus(const peerbus_comm_options& options, deadline until);

/// Makes the transport that the options name, for the ranks of `boot`, fills `chosen`, except for
/// metrics that it has, and logs the transport and its device. Collective.
/// Throws, on all ranks: `error` mismatch if they name different ones, unsupported if one rank
/// cannot load its library or a host is not shared, invalid_argument for a wrong PEERBUS_LOG,
/// PEERBUS_TRACE or PEERBUS_METRICS, and what the transport throws.
bus choose_bus(bootstrap& boot, const peerbus_comm_options& options,
               const std::shared_ptr<interruption>& stop, deadline until, bus_choice& chosen);

}  // namespace peerbus::c_library
