// SPDX-License-Identifier: MIT
#pragma once

// Counters of what experts get, and planners of where they lie. docs/balancing.md.
#include <peerbus/moe/balance/eplb.hpp>         // IWYU pragma: export
#include <peerbus/moe/balance/expert_load.hpp>  // IWYU pragma: export
#include <peerbus/moe/balance/incremental.hpp>  // IWYU pragma: export
#include <peerbus/moe/balance/load.hpp>         // IWYU pragma: export
#include <peerbus/moe/balance/slot_plan.hpp>    // IWYU pragma: export
#include <peerbus/moe/balance/spread.hpp>       // IWYU pragma: export
