// SPDX-License-Identifier: MIT
#pragma once

/// The part without transports: errors, time, ranks, bf16, signals and how they are waited for.

#include <peerbus/core/align.hpp>     // IWYU pragma: export
#include <peerbus/core/bf16.hpp>      // IWYU pragma: export
#include <peerbus/core/deadline.hpp>  // IWYU pragma: export
#include <peerbus/core/error.hpp>     // IWYU pragma: export
#include <peerbus/core/rank.hpp>      // IWYU pragma: export
#include <peerbus/core/signal.hpp>    // IWYU pragma: export
#include <peerbus/core/wait.hpp>      // IWYU pragma: export
