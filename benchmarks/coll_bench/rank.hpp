// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/bootstrap/bootstrap.hpp>

#include "coll_bench/options.hpp"

namespace coll_bench {

/// The exit status for a command line that cannot be carried out.
inline constexpr int bad_command_line = 2;

/// True if libibverbs was there when this program was built.
extern const bool verbs_built;
/// True if libfabric was there when this program was built.
extern const bool fabric_built;

/// Measures, and prints on rank 0. Every rank calls it. There is one function for each transport.
/// Returns: the exit status, 1 if elements were wrong.
[[nodiscard]] int run_unified_bus(peerbus::bootstrap& boot, const options& chosen);
[[nodiscard]] int run_loopback(peerbus::bootstrap& boot, const options& chosen);
/// Over `verbs`, or over `planes` of it and `unified_bus`.
/// Throws: `peerbus::error` unsupported unless `verbs_built`.
[[nodiscard]] int run_verbs(peerbus::bootstrap& boot, const options& chosen);
/// Over `fabric`, or over `planes` of it and `unified_bus`. Throws: `peerbus::error` unsupported
/// unless `fabric_built`.
[[nodiscard]] int run_fabric(peerbus::bootstrap& boot, const options& chosen);

}  // namespace coll_bench
