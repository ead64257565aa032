// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/communicator/communicator.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/log.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/optional_calls.hpp>
#include <peerbus/transport/refinements.hpp>

namespace peerbus {

namespace detail {

/// Tells `sink` the choices for a transport with `reach` over `boot`, as `log_choices` does.
/// `shares_files` is true if windows are memory files.
void log_group(const bootstrap& boot, peer_reach reach, bool shares_files, log_sink sink);

}  // namespace detail

/// Tells `sink` the choices made with `comm`: which ranks loads and stores reach, the pages of
/// windows, and how ranks wait. Not collective.
/// Cost: allocates, and reads a file of /sys.
/// Throws: what `sink` throws.
template <transport Transport>
void log_choices(communicator<Transport>& comm, log_sink sink) {
  const bootstrap& boot = comm.bus().boot();
  const peer_reach reach = reach_of(comm.bus());
  bool are_processes = boot.addresses() == address_space::separate;
  if constexpr (runnable_transport<Transport>)
    are_processes = Transport::ranks_are == rank_kind::processes;
  detail::log_group(boot, reach, are_processes && reach != peer_reach::none, sink);
}

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/communicator/log_choices.ipp>  // IWYU pragma: keep
#endif
