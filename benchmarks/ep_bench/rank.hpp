// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/bootstrap/bootstrap.hpp>

#include "ep_bench/options.hpp"

namespace ep_bench {

/// How the ranks got their cores.
enum class placement { pinned, not_pinned, by_launcher };

/// What every rank does: measure, and on rank 0 report. One function per transport.
/// Returns: the exit status, 1 if the check failed.
[[nodiscard]] int run_unified_bus(peerbus::bootstrap& boot, const options& chosen, placement how);
[[nodiscard]] int run_loopback(peerbus::bootstrap& boot, const options& chosen, placement how);

}  // namespace ep_bench
