// SPDX-License-Identifier: MIT
#pragma once

/// Includes everything for a program that starts its own ranks. Other parts have headers of their
/// own, so that programs that do not use them need not parse them: collective operations over
/// arrays (<peerbus/collective.hpp>), ranks that a launcher starts
/// (<peerbus/bootstrap/environment.hpp>), two transports at once (<peerbus/transport/planes.hpp>),
/// transports chosen at run time (any_transport.hpp, always included in programs that link
/// peerbus::compiled), the names of other libraries (<peerbus/compat/...>), and headers that need a
/// library (<peerbus/bootstrap/tcp.hpp>, verbs, fabric, topology).

#include <peerbus/bootstrap/local.hpp>            // IWYU pragma: export
#include <peerbus/bootstrap/threads.hpp>          // IWYU pragma: export
#include <peerbus/codec/as_given.hpp>             // IWYU pragma: export
#include <peerbus/codec/bf16.hpp>                 // IWYU pragma: export
#include <peerbus/codec/fp8_e4m3_per_128.hpp>     // IWYU pragma: export
#include <peerbus/codec/int8_per_token.hpp>       // IWYU pragma: export
#include <peerbus/codec/nothing.hpp>              // IWYU pragma: export
#include <peerbus/communicator/communicator.hpp>  // IWYU pragma: export
#include <peerbus/communicator/run.hpp>           // IWYU pragma: export
#include <peerbus/core.hpp>                       // IWYU pragma: export
#include <peerbus/moe/check_config.hpp>           // IWYU pragma: export
#include <peerbus/moe/exchange.hpp>               // IWYU pragma: export
#include <peerbus/transport/loopback.hpp>         // IWYU pragma: export
#include <peerbus/transport/unified_bus.hpp>      // IWYU pragma: export
#include <peerbus/version.hpp>                    // IWYU pragma: export

#ifdef PEERBUS_COMPILED
#include <peerbus/moe/compiled_instances.hpp>  // IWYU pragma: export
#endif
