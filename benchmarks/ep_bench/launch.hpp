// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/bootstrap/bootstrap.hpp>

#include "ep_bench/options.hpp"
#include "ep_bench/rank.hpp"

namespace ep_bench {

/// Starts a group of `chosen.ranks` ranks on this host, which measure and deliver; with processes
/// for ranks `deliver` runs in one of those.
/// Returns: the worst exit status.
/// Throws: `peerbus::error` if they cannot be started.
[[nodiscard]] int start_group(const options& chosen, const delivery& deliver);

/// What a rank that is a process does: `run_unified_bus`, `run_verbs` or another, as
/// `chosen.transport` and `chosen.far` say.
[[nodiscard]] int run_process(peerbus::bootstrap& boot, const options& chosen, placement how,
                              const delivery& deliver);

}  // namespace ep_bench
