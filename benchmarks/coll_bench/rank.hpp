// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/bootstrap/bootstrap.hpp>

#include "coll_bench/options.hpp"

namespace coll_bench {

/// The exit status for a command line that cannot be carried out.
inline constexpr int bad_command_line = 2;

/// Measures, and prints on rank 0. Every rank calls it. There is one function for each transport.
/// Returns: the exit status, 1 if elements were wrong.
[[nodiscard]] int run_unified_bus(peerbus::bootstrap& boot, const options& chosen);
[[nodiscard]] int run_loopback(peerbus::bootstrap& boot, const options& chosen);
/// Over the network that was chosen, or over `planes` of it and `unified_bus`.
/// Throws: `peerbus::error` unsupported if this program was built without it.
[[nodiscard]] int run_network(peerbus::bootstrap& boot, const options& chosen);

}  // namespace coll_bench
