// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/bootstrap/bootstrap.hpp>

#include "ep_bench/options.hpp"

namespace ep_bench {

// For `ep_bench --topology`. `main` calls the second where a launcher has started the ranks, else
// the first. Where hwloc was not found when this program was built, they say so instead.

/// Starts `chosen.ranks` ranks over `chosen.transport`, places them (`chosen.pin` false: without
/// pinning), binds a window to their nodes and prints what was found and done, a line each.
/// Returns: the worst exit status. Throws: `peerbus::error` if the ranks cannot be started.
[[nodiscard]] int print_topology(const options& chosen);

/// The same for ranks that exist. Collective; rank 0 prints. Throws: `peerbus::error`.
void print_topology(peerbus::bootstrap& boot, const options& chosen);

}  // namespace ep_bench
