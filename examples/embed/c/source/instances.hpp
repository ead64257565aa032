// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/codec/as_given.hpp>
#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/fp8_e4m3_per_128.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/codec/nothing.hpp>
#include <peerbus/moe/compiled_instances.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/transport/any_transport.hpp>

// Declares the exchanges of this library beside those of peerbus::compiled, so that the sources in
// codecs/ alone compile them.
// NOLINTBEGIN(bugprone-macro-parentheses): the arguments are a keyword or nothing, and a type.
#define PEERBUS_C_EXCHANGE(extern_or_empty, Codec, Layout) \
  extern_or_empty template class peerbus::moe::exchange<   \
      peerbus::any_transport, peerbus::codec::Codec, peerbus::moe::Layout>
#define PEERBUS_C_MORE_EXCHANGES(extern_or_empty, Codec)  \
  PEERBUS_C_EXCHANGE(extern_or_empty, Codec, padded);     \
  PEERBUS_C_EXCHANGE(extern_or_empty, Codec, rank_major); \
  PEERBUS_C_EXCHANGE(extern_or_empty, Codec, slots);      \
  PEERBUS_C_EXCHANGE(extern_or_empty, Codec, expert_slots)
#define PEERBUS_C_EXCHANGES(extern_or_empty, Codec)    \
  PEERBUS_C_EXCHANGE(extern_or_empty, Codec, compact); \
  PEERBUS_C_MORE_EXCHANGES(extern_or_empty, Codec)
// NOLINTEND(bugprone-macro-parentheses)

PEERBUS_C_MORE_EXCHANGES(extern, bf16);
PEERBUS_C_MORE_EXCHANGES(extern, int8_per_token);
PEERBUS_C_MORE_EXCHANGES(extern, fp8_e4m3_per_128_f32);
PEERBUS_C_EXCHANGES(extern, fp8_e4m3_per_128_rounded_f32);
PEERBUS_C_EXCHANGES(extern, fp8_e4m3_per_128_ue8m0);
PEERBUS_C_EXCHANGES(extern, fp8_e4m3_as_given);
PEERBUS_C_EXCHANGES(extern, nothing);
