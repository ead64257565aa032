// SPDX-License-Identifier: MIT
#pragma once

// The instances that several test files use. They are compiled once, in support/instances/, and
// declared here, so that no test file compiles them again.

#include <peerbus/codec/archetype.hpp>
#include <peerbus/codec/as_given.hpp>
#include <peerbus/codec/nothing.hpp>
#include <peerbus/compat/cann.hpp>
#include <peerbus/compat/deep_ep.hpp>
#include <peerbus/moe/compiled_instances.hpp>
#include <peerbus/peerbus.hpp>
#include <peerbus/transport/any_transport.hpp>

#include "support/indirect.hpp"

namespace test {
using indirect_loopback = indirect<peerbus::loopback>;
}  // namespace test

#define TEST_EXCHANGE(extern_or_empty, Transport, Codec, Layout)                          \
  extern_or_empty template class peerbus::moe::exchange<Transport, peerbus::codec::Codec, \
                                                        peerbus::moe::Layout>

// What peerbus::compiled has of the transports that it lists.
#define TEST_COMMON_INSTANCES(extern_or_empty, Transport)             \
  extern_or_empty template class peerbus::communicator<Transport>;    \
  TEST_EXCHANGE(extern_or_empty, Transport, bf16, compact);           \
  TEST_EXCHANGE(extern_or_empty, Transport, int8_per_token, compact); \
  TEST_EXCHANGE(extern_or_empty, Transport, fp8_e4m3_per_128_f32, compact)

#define TEST_LAYOUT_INSTANCES(extern_or_empty, Transport)            \
  TEST_EXCHANGE(extern_or_empty, Transport, bf16, padded);           \
  TEST_EXCHANGE(extern_or_empty, Transport, bf16, rank_major);       \
  TEST_EXCHANGE(extern_or_empty, Transport, int8_per_token, padded); \
  TEST_EXCHANGE(extern_or_empty, Transport, int8_per_token, rank_major)

#define TEST_SLOT_INSTANCES(extern_or_empty, Transport)             \
  TEST_EXCHANGE(extern_or_empty, Transport, int8_per_token, slots); \
  TEST_EXCHANGE(extern_or_empty, Transport, int8_per_token, expert_slots)

#define TEST_AUTOMATIC_INSTANCES(extern_or_empty, Transport)            \
  TEST_EXCHANGE(extern_or_empty, Transport, int8_per_token, automatic); \
  TEST_EXCHANGE(extern_or_empty, Transport, int8_per_token, automatic_by_rank)

#define TEST_DEEP_EP_INSTANCES(extern_or_empty, Transport)                         \
  TEST_EXCHANGE(extern_or_empty, Transport, fp8_e4m3_per_128_f32, padded);         \
  TEST_EXCHANGE(extern_or_empty, Transport, fp8_e4m3_per_128_rounded_f32, padded); \
  TEST_EXCHANGE(extern_or_empty, Transport, fp8_e4m3_per_128_ue8m0, padded);       \
  TEST_EXCHANGE(extern_or_empty, Transport, fp8_e4m3_as_given, rank_major);        \
  TEST_EXCHANGE(extern_or_empty, Transport, nothing, rank_major);                  \
  extern_or_empty template class peerbus::deep_ep::buffer<Transport>

#define TEST_CANN_INSTANCES(extern_or_empty, Transport)                                          \
  extern_or_empty template class peerbus::cann::moe_distribute<Transport, peerbus::codec::bf16>; \
  extern_or_empty template class peerbus::cann::moe_distribute<Transport,                        \
                                                               peerbus::codec::int8_per_token>

TEST_COMMON_INSTANCES(extern, test::indirect_loopback);
TEST_LAYOUT_INSTANCES(extern, peerbus::loopback);
TEST_LAYOUT_INSTANCES(extern, peerbus::unified_bus);
TEST_LAYOUT_INSTANCES(extern, test::indirect_loopback);
TEST_SLOT_INSTANCES(extern, peerbus::loopback);
TEST_SLOT_INSTANCES(extern, test::indirect_loopback);
// One instance serves all suites that do not test compile-time dispatch.
TEST_LAYOUT_INSTANCES(extern, peerbus::any_transport);
TEST_SLOT_INSTANCES(extern, peerbus::any_transport);
TEST_AUTOMATIC_INSTANCES(extern, peerbus::any_transport);
TEST_DEEP_EP_INSTANCES(extern, peerbus::any_transport);
TEST_CANN_INSTANCES(extern, peerbus::any_transport);
