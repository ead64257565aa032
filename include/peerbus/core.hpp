// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// The headers that need no transport: errors, deadlines, ranks, bf16, signals and wait policies.

#include <peerbus/core/align.hpp>           // IWYU pragma: export
#include <peerbus/core/bf16.hpp>            // IWYU pragma: export
#include <peerbus/core/deadline.hpp>        // IWYU pragma: export
#include <peerbus/core/error.hpp>           // IWYU pragma: export
#include <peerbus/core/process_memory.hpp>  // IWYU pragma: export
#include <peerbus/core/rank.hpp>            // IWYU pragma: export
#include <peerbus/core/signal.hpp>          // IWYU pragma: export
#include <peerbus/core/wait.hpp>            // IWYU pragma: export
