// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <span>
#include <thread>
#include <vector>

#include <peerbus/compat/cann.hpp>
#include <peerbus/compat/deep_ep.hpp>
#include <peerbus/peerbus.hpp>

/// What the blocks of the pages see without saying so. Nothing here is defined, because the blocks
/// are compiled but not linked.
namespace given {

using namespace std::chrono_literals;
using peerbus::bf16;
namespace moe = peerbus::moe;
namespace deep_ep = peerbus::deep_ep;

extern peerbus::bootstrap& boot;
extern peerbus::communicator<peerbus::unified_bus>& comm;
extern const bool one_host;
extern const std::vector<peerbus::rank_id> ranks_of_my_stage;

// A batch of an exchange.
extern const std::size_t hidden;
extern const moe::exchange_config config;
extern const peerbus::codec::int8_per_token codec;
extern std::vector<bf16> tokens;           // [count, hidden]
extern std::vector<std::int32_t> experts;  // [count, top_k]
extern std::vector<float> weights;         // [count, top_k]
extern std::vector<bf16> out;              // [count, hidden]
extern std::vector<bf16> more_tokens, more_out;
extern std::vector<std::int32_t> more_experts;
extern std::vector<float> more_weights;
extern std::vector<peerbus::fp8_e4m3> codes;
extern std::vector<float> scales;

// The tensors of DeepEP's calls.
extern const deep_ep::const_tensor x, topk_idx, topk_weights;
extern const std::size_t num_experts;

// The caller's own computations.
void run_experts(auto&&...);
void grouped_gemm(auto&&...);
void run_expert(auto&&...);
void masked_gemm(auto&&...);
void add_expert(auto&&...);

}  // namespace given
