// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/bootstrap/bootstrap.hpp>

#include "coll_bench/options.hpp"

namespace coll_bench {

/// The exit status for a command line that cannot be carried out.
inline constexpr int bad_command_line = 2;

/// Whether libibverbs was there when this program was built.
extern const bool verbs_built;
/// Whether libfabric was.
extern const bool fabric_built;

/// What every rank does: measure, and on rank 0 print. One function for each transport.
/// Returns: the exit status, 1 if elements were wrong.
[[nodiscard]] int run_unified_bus(peerbus::bootstrap& boot, const options& chosen);
[[nodiscard]] int run_loopback(peerbus::bootstrap& boot, const options& chosen);
/// Over `verbs`, or over `planes` of it and `unified_bus`.
/// Throws: `peerbus::error` unsupported unless `verbs_built`.
[[nodiscard]] int run_verbs(peerbus::bootstrap& boot, const options& chosen);
/// The same of `fabric`. Throws: `peerbus::error` unsupported unless `fabric_built`.
[[nodiscard]] int run_fabric(peerbus::bootstrap& boot, const options& chosen);

}  // namespace coll_bench
