// SPDX-License-Identifier: MIT
#pragma once

#include "ep_bench/options.hpp"
#include "ep_bench/rank.hpp"

namespace ep_bench {

/// Starts a group of `chosen.ranks` ranks on this host, which measure and deliver; with processes
/// for ranks `deliver` runs in one of those.
/// Returns: the worst exit status.
/// Throws: `peerbus::error` if they cannot be started.
[[nodiscard]] int start_group(const options& chosen, const delivery& deliver);

}  // namespace ep_bench
