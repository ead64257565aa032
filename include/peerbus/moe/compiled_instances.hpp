// SPDX-License-Identifier: MIT
#pragma once

/// Declares the template instances that most programs use. The target peerbus::compiled contains
/// them, so that a program that links it need not compile them again.

#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/fp8_e4m3_per_128.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/communicator/any_window.hpp>
#include <peerbus/communicator/communicator.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/loopback.hpp>
#include <peerbus/transport/unified_bus.hpp>

// NOLINTBEGIN(bugprone-macro-parentheses): the arguments are a keyword or nothing, and a type.
#define PEERBUS_INSTANCES(extern_or_empty, Transport)                                     \
  extern_or_empty template class peerbus::communicator<Transport>;                        \
  extern_or_empty template class peerbus::any_window_over<Transport>;                     \
  extern_or_empty template class peerbus::moe::exchange<Transport, peerbus::codec::bf16>; \
  extern_or_empty template class peerbus::moe::exchange<Transport,                        \
                                                        peerbus::codec::int8_per_token>;  \
  extern_or_empty template class peerbus::moe::exchange<Transport,                        \
                                                        peerbus::codec::fp8_e4m3_per_128_f32>
// NOLINTEND(bugprone-macro-parentheses)

PEERBUS_INSTANCES(extern, peerbus::any_transport);
PEERBUS_INSTANCES(extern, peerbus::loopback);
PEERBUS_INSTANCES(extern, peerbus::unified_bus);
