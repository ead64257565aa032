// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus {

/// The options of `mpi_bootstrap`, `pmix_bootstrap` and `bootstrap_by_all_gather`. Only those of
/// rank 0 are used, except for `host` and `mesh`.
struct rendezvous_options {
  /// A name or an address (IPv4 or IPv6) by which all ranks reach the host of rank 0. If it is
  /// empty, the host's own name is used. Not needed if all ranks are on one host.
  std::string address;
  /// Meets over TCP even if all ranks are on one host. Needed if the ranks of one host are in
  /// containers with different networks.
  bool over_tcp = false;
  /// The name of this rank's host, as in `tcp_settings::host`. Not used by `pmix_bootstrap`.
  std::string host{};
  /// Makes ranks that meet over TCP a mesh, as `tcp_settings::mesh`. The same on all
  /// ranks.
  bool mesh = false;
};
/// The former name of `rendezvous_options`.
using meeting_options [[deprecated("use rendezvous_options")]] = rendezvous_options;

}  // namespace peerbus
