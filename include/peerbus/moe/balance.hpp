// SPDX-License-Identifier: MIT
#pragma once

// Planners of where experts lie, from how many tokens each expert receives. docs/balancing.md.
#include <peerbus/moe/balance/eplb.hpp>         // IWYU pragma: export
#include <peerbus/moe/balance/incremental.hpp>  // IWYU pragma: export
#include <peerbus/moe/balance/load.hpp>         // IWYU pragma: export
#include <peerbus/moe/balance/slot_plan.hpp>    // IWYU pragma: export
#include <peerbus/moe/balance/spread.hpp>       // IWYU pragma: export
