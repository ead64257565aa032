// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/compat/deep_ep/buffer.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>

#include "deep_ep/normal_form.hpp"
#include "deep_ep/normal_round.hpp"
#include "deep_ep/normal_suite.hpp"
#include "support/ranks.hpp"

/// Bad arguments to DeepEP's normal calls, for any group of ranks: the text names the argument,
/// what was expected and what was given, and the buffer goes on.
namespace normal {

using peerbus::errc;
using peerbus::deep_ep::combine_args;
using peerbus::deep_ep::dispatch_args;

/// Memory for tensors whose elements nobody may read.
alignas(16) inline std::byte unread[8192]{};
/// An address in it that no element of more than one byte can have.
inline const void* odd() { return unread + 1; }

template <class Args>
struct bad {
  std::string_view name;
  void (*spoil)(Args&);
  std::array<std::string_view, 2> says;
  errc code = errc::invalid_argument;
};

// All of these spoil a call of 4 tokens, H 32, K 3, E 6 on 3 ranks, at most 4 tokens each.
constexpr auto bf16_type = dtype::bfloat16;

inline const std::vector<bad<dispatch_args>>& bad_dispatches() {
  static const std::vector<bad<dispatch_args>> all{
      {"x none",
       [](auto& a) { a.x = {}; },
       {"dispatch: x is none", "expected bfloat16 or float8_e4m3fn or int8 [any, any]"}},
      {"x of floats",
       [](auto& a) { a.x = {unread, dtype::float32, {4, 32}}; },
       {"dispatch: x is float32 [4, 32]", "expected bfloat16"}},
      {"x of one dimension",
       [](auto& a) { a.x = {unread, bf16_type, {128}}; },
       {"dispatch: x is bfloat16 [128]"}},
      {"x of three",
       [](auto& a) { a.x = {unread, bf16_type, {4, 1, 32}}; },
       {"dispatch: x is bfloat16 [4, 1, 32]"}},
      {"x with gaps",
       [](auto& a) { a.x = {unread, bf16_type, {4, 32}, {40, 1}}; },
       {"dispatch: x is bfloat16 [4, 32] with strides [40, 1]", "contiguous"}},
      {"x column by column",
       [](auto& a) { a.x = {unread, bf16_type, {4, 32}, {1, 4}}; },
       {"dispatch: x is bfloat16 [4, 32] with strides [1, 4]", "contiguous"}},
      {"x at null",
       [](auto& a) { a.x = {nullptr, bf16_type, {4, 32}}; },
       {"dispatch: x is bfloat16 [4, 32] at null"}},
      {"x at an odd address",
       [](auto& a) { a.x = {odd(), bf16_type, {4, 32}}; },
       {"dispatch: x is at address ", "expected a multiple of 2 for bfloat16"}},
      {"x of another count",
       [](auto& a) { a.x = {unread, bf16_type, {3, 32}}; },
       {"dispatch: is_token_in_rank is bool [4, 3], expected bool [3, 3]"}},

      {"scales of bf16",
       [](auto& a) { a.x_scales = {unread, bf16_type, {4, 1}}; },
       {"dispatch: x_scales is bfloat16 [4, 1]",
        "expected float32, int32 or one byte [4, any] or [4]"}},
      {"scales of int64",
       [](auto& a) { a.x_scales = {unread, dtype::int64, {4}}; },
       {"dispatch: x_scales is int64 [4]"}},
      {"scales of fewer tokens",
       [](auto& a) { a.x_scales = {unread, dtype::float32, {3, 1}}; },
       {"dispatch: x_scales is float32 [3, 1]", "[4, any]"}},
      {"scales of three dimensions",
       [](auto& a) { a.x_scales = {unread, dtype::float32, {4, 1, 1}}; },
       {"dispatch: x_scales is float32 [4, 1, 1]"}},
      {"scales at null",
       [](auto& a) { a.x_scales = {nullptr, dtype::float32, {4, 1}}; },
       {"dispatch: x_scales is at null"}},

      {"no num_tokens_per_rank",
       [](auto& a) { a.num_tokens_per_rank = {}; },
       {"dispatch: num_tokens_per_rank is none, expected int32 [3]"}},
      {"num_tokens_per_rank of int64",
       [](auto& a) { a.num_tokens_per_rank = {unread, dtype::int64, {3}}; },
       {"dispatch: num_tokens_per_rank is int64 [3], expected int32 [3]"}},
      {"num_tokens_per_rank of more ranks",
       [](auto& a) { a.num_tokens_per_rank = {unread, dtype::int32, {4}}; },
       {"dispatch: num_tokens_per_rank is int32 [4], expected int32 [3]"}},
      {"num_tokens_per_rank at null",
       [](auto& a) { a.num_tokens_per_rank = {nullptr, dtype::int32, {3}}; },
       {"dispatch: num_tokens_per_rank is int32 [3] at null"}},
      {"num_tokens_per_rank misaligned",
       [](auto& a) { a.num_tokens_per_rank = {odd(), dtype::int32, {3}}; },
       {"dispatch: num_tokens_per_rank is at address ", "a multiple of 4"}},
      {"wrong num_tokens_per_rank",
       [](auto& a) {
         static const std::int32_t wrong[3]{99, 99, 99};
         a.num_tokens_per_rank = {wrong, dtype::int32, {3}};
       },
       {"dispatch: num_tokens_per_rank is 99 for rank 0, expected "}},
      {"wrong num_tokens_per_rank without topk_idx",
       [](auto& a) {
         static const std::int32_t wrong[3]{99, 99, 99};
         a.num_tokens_per_rank = {wrong, dtype::int32, {3}};
         a.topk_idx = a.topk_weights = {};
       },
       {"dispatch: num_tokens_per_rank is 99 for rank 0, expected "}},
      {"num_tokens_per_rdma_rank",
       [](auto& a) { a.num_tokens_per_rdma_rank = {unread, dtype::int32, {1}}; },
       {"dispatch: num_tokens_per_rdma_rank was given", "expected none"},
       errc::unsupported},
      {"no is_token_in_rank",
       [](auto& a) { a.is_token_in_rank = {}; },
       {"dispatch: is_token_in_rank is none, expected bool [4, 3]"}},
      {"is_token_in_rank of int8",
       [](auto& a) { a.is_token_in_rank = {unread, dtype::int8, {4, 3}}; },
       {"dispatch: is_token_in_rank is int8 [4, 3], expected bool [4, 3]"}},
      {"is_token_in_rank the other way round",
       [](auto& a) { a.is_token_in_rank = {unread, dtype::boolean, {3, 4}}; },
       {"dispatch: is_token_in_rank is bool [3, 4], expected bool [4, 3]"}},
      {"is_token_in_rank column by column",
       [](auto& a) { a.is_token_in_rank = {unread, dtype::boolean, {4, 3}, {1, 4}}; },
       {"dispatch: is_token_in_rank is bool [4, 3] with strides [1, 4]"}},
      {"wrong is_token_in_rank",
       [](auto& a) {
         static const bool wrong[12]{};
         a.is_token_in_rank = {wrong, dtype::boolean, {4, 3}};
       },
       {"dispatch: is_token_in_rank differs from topk_idx at element "}},
      {"no num_tokens_per_expert",
       [](auto& a) { a.num_tokens_per_expert = {}; },
       {"dispatch: num_tokens_per_expert is none, expected int32 [any]"}},
      {"num_tokens_per_expert of floats",
       [](auto& a) { a.num_tokens_per_expert = {unread, dtype::float32, {6}}; },
       {"dispatch: num_tokens_per_expert is float32 [6], expected int32 [any]"}},
      {"num_tokens_per_expert of no expert",
       [](auto& a) {
         a.num_tokens_per_expert = {unread, dtype::int32, {0}};
         a.topk_idx = a.topk_weights = {};
       },
       {"dispatch: num_tokens_per_expert is int32 [0], expected at least one expert"}},
      {"negative num_tokens_per_expert without topk_idx",
       [](auto& a) {
         static const std::int32_t wrong[6]{1, 2, -3, 4, 5, 6};
         a.num_tokens_per_expert = {wrong, dtype::int32, {6}};
         a.topk_idx = a.topk_weights = {};
       },
       {"dispatch: num_tokens_per_expert is -3 for expert 2, expected 0 to x's 4"}},
      {"wrong num_tokens_per_expert",
       [](auto& a) {
         static const std::int32_t wrong[6]{99, 99, 99, 99, 99, 99};
         a.num_tokens_per_expert = {wrong, dtype::int32, {6}};
       },
       {"dispatch: num_tokens_per_expert is 99 for expert 0, expected ", " by topk_idx"}},

      {"topk_idx of floats",
       [](auto& a) { a.topk_idx = {unread, dtype::float32, {4, 3}}; },
       {"dispatch: topk_idx is float32 [4, 3], expected int64 or int32 [4, any]"}},
      {"topk_idx of fewer tokens",
       [](auto& a) { a.topk_idx = {unread, dtype::int64, {3, 3}}; },
       {"dispatch: topk_idx is int64 [3, 3], expected int64 or int32 [4, any]"}},
      {"topk_idx of one dimension",
       [](auto& a) { a.topk_idx = {unread, dtype::int64, {12}}; },
       {"dispatch: topk_idx is int64 [12]"}},
      {"topk_idx column by column",
       [](auto& a) { a.topk_idx = {unread, dtype::int64, {4, 3}, {1, 4}}; },
       {"dispatch: topk_idx is int64 [4, 3] with strides [1, 4]"}},
      {"topk_idx at null",
       [](auto& a) { a.topk_idx = {nullptr, dtype::int64, {4, 3}}; },
       {"dispatch: topk_idx is int64 [4, 3] at null"}},
      {"topk_idx misaligned",
       [](auto& a) { a.topk_idx = {odd(), dtype::int64, {4, 3}}; },
       {"dispatch: topk_idx is at address ", "a multiple of 8 for int64"}},
      {"topk_idx alone",
       [](auto& a) { a.topk_weights = {}; },
       {"dispatch: topk_weights is none but topk_idx is int64 [4, 3], expected both or neither"}},
      {"topk_weights alone",
       [](auto& a) { a.topk_idx = {}; },
       {"dispatch: topk_weights is float32 [4, 3] but topk_idx is none, expected both or neither"}},
      {"topk_weights of bf16",
       [](auto& a) { a.topk_weights = {unread, bf16_type, {4, 3}}; },
       {"dispatch: topk_weights is bfloat16 [4, 3], expected float32 [4, 3]"}},
      {"topk_weights of more slots",
       [](auto& a) { a.topk_weights = {unread, dtype::float32, {4, 4}}; },
       {"dispatch: topk_weights is float32 [4, 4], expected float32 [4, 3]"}},
      {"topk_weights with gaps",
       [](auto& a) { a.topk_weights = {unread, dtype::float32, {4, 3}, {4, 1}}; },
       {"dispatch: topk_weights is float32 [4, 3] with strides [4, 1]"}},
      {"topk_weights at null",
       [](auto& a) { a.topk_weights = {nullptr, dtype::float32, {4, 3}}; },
       {"dispatch: topk_weights is float32 [4, 3] at null"}},

      {"alignment 0",
       [](auto& a) { a.expert_alignment = 0; },
       {"dispatch: expert_alignment is 0, expected 1 to 16777216"}},
      {"alignment beyond 2^24",
       [](auto& a) { a.expert_alignment = (std::size_t{1} << 24U) + 1; },
       {"dispatch: expert_alignment is 16777217, expected 1 to 16777216"}},
      {"more rows than any rank has room for",
       [](auto& a) { a.num_worst_tokens = std::size_t{1} << 32U; },
       {"dispatch: num_worst_tokens is 4294967296, expected at most 4294967295"}},
      {"more tokens than the call states",
       [](auto& a) { a.num_max_tokens_per_rank = 3; },
       {"dispatch: x has 4 tokens, expected at most num_max_tokens_per_rank, 3"}},
      {"num_max_tokens_per_rank beyond all rows",
       [](auto& a) { a.num_max_tokens_per_rank = std::size_t{1} << 32U; },
       {"dispatch: num_max_tokens_per_rank is 4294967296, expected 1 to 4294967295"}},
      {"num_worst_tokens without topk_idx",
       [](auto& a) {
         a.num_worst_tokens = 12;
         a.topk_idx = a.topk_weights = {};
       },
       {"dispatch: num_worst_tokens is 12 without topk_idx"}},
      {"config",
       [](auto& a) { a.config.emplace(); },
       {"dispatch: config was given"},
       errc::unsupported},
      {"allocate_on_comm_stream",
       [](auto& a) { a.allocate_on_comm_stream = true; },
       {"dispatch: allocate_on_comm_stream was given"},
       errc::unsupported},
  };
  return all;
}

/// Beside a handle, which they are given.
inline const std::vector<bad<dispatch_args>>& bad_cached_dispatches() {
  static const std::vector<bad<dispatch_args>> all{
      {"other tokens",
       [](auto& a) { a.x = {unread, bf16_type, {3, 32}}; },
       {"dispatch: handle is of 4 tokens, expected x's 3"}},
      {"num_tokens_per_rank",
       [](auto& a) { a.num_tokens_per_rank = {unread, dtype::int32, {3}}; },
       {"dispatch: num_tokens_per_rank was given beside a handle, expected none"}},
      {"num_tokens_per_rdma_rank",
       [](auto& a) { a.num_tokens_per_rdma_rank = {unread, dtype::int32, {1}}; },
       {"dispatch: num_tokens_per_rdma_rank was given beside a handle"}},
      {"is_token_in_rank",
       [](auto& a) { a.is_token_in_rank = {unread, dtype::boolean, {4, 3}}; },
       {"dispatch: is_token_in_rank was given beside a handle"}},
      {"num_tokens_per_expert",
       [](auto& a) { a.num_tokens_per_expert = {unread, dtype::int32, {6}}; },
       {"dispatch: num_tokens_per_expert was given beside a handle"}},
      {"topk_idx",
       [](auto& a) { a.topk_idx = {unread, dtype::int64, {4, 3}}; },
       {"dispatch: topk_idx was given beside a handle"}},
      {"topk_weights",
       [](auto& a) { a.topk_weights = {unread, dtype::float32, {4, 3}}; },
       {"dispatch: topk_weights was given beside a handle"}},
      {"expert_alignment",
       [](auto& a) { a.expert_alignment = 128; },
       {"dispatch: expert_alignment is 128 beside a handle, expected 1"}},
      {"num_worst_tokens",
       [](auto& a) { a.num_worst_tokens = 12; },
       {"dispatch: num_worst_tokens is 12 beside a handle, expected 0"}},
      {"scales of fewer tokens",
       [](auto& a) { a.x_scales = {unread, dtype::float32, {3}}; },
       {"dispatch: x_scales is float32 [3]"}},
  };
  return all;
}

/// Of a rank that received 12 rows.
inline const std::vector<bad<combine_args>>& bad_combines() {
  static const std::vector<bad<combine_args>> all{
      {"no handle",
       [](auto& a) { a.handle = {}; },
       {"combine: handle is none, expected the one of a dispatch"}},
      {"x none", [](auto& a) { a.x = {}; }, {"combine: x is none, expected bfloat16 ["}},
      {"x of floats",
       [](auto& a) { a.x = {unread, dtype::float32, {12, 32}}; },
       {"combine: x is float32 [12, 32], expected bfloat16 ["}},
      {"x column by column",
       [](auto& a) { a.x = {unread, bf16_type, {12, 32}, {1, 12}}; },
       {"combine: x is bfloat16 [12, 32] with strides [1, 12]", "the last dimension contiguous"}},
      {"x at null",
       [](auto& a) { a.x = {nullptr, bf16_type, {12, 32}}; },
       {"combine: x is bfloat16 [12, 32] at null"}},
      {"x misaligned",
       [](auto& a) { a.x = {odd(), bf16_type, {12, 32}}; },
       {"combine: x is at address ", "a multiple of 2"}},
      {"x of fewer rows",
       [](auto& a) { a.x = {unread, bf16_type, {11, 32}}; },
       {"combine: x is bfloat16 [11, 32], expected bfloat16 [12, any]"}},
      {"x of more rows",
       [](auto& a) { a.x = {unread, bf16_type, {13, 32}}; },
       {"combine: x is bfloat16 [13, 32], expected bfloat16 [12, any]"}},
      {"topk_weights of bf16",
       [](auto& a) { a.topk_weights = {unread, bf16_type, {12, 3}}; },
       {"combine: topk_weights is bfloat16 [12, 3], expected float32 [12, 3]"}},
      {"topk_weights of fewer rows",
       [](auto& a) { a.topk_weights = {unread, dtype::float32, {11, 3}}; },
       {"combine: topk_weights is float32 [11, 3], expected float32 [12, 3]"}},
      {"topk_weights with gaps",
       [](auto& a) { a.topk_weights = {unread, dtype::float32, {12, 3}, {4, 1}}; },
       {"combine: topk_weights is float32 [12, 3] with strides [4, 1]"}},
      {"topk_weights at null",
       [](auto& a) { a.topk_weights = {nullptr, dtype::float32, {12, 3}}; },
       {"combine: topk_weights is float32 [12, 3] at null"}},
      {"bias of floats",
       [](auto& a) { a.bias[0] = {unread, dtype::float32, {4, 32}}; },
       {"combine: bias is float32 [4, 32], expected bfloat16 [4, 32]"}},
      {"bias of received rows",
       [](auto& a) { a.bias[1] = {unread, bf16_type, {12, 32}}; },
       {"combine: bias is bfloat16 [12, 32], expected bfloat16 [4, 32]"}},
      {"bias with gaps",
       [](auto& a) { a.bias[0] = {unread, bf16_type, {4, 32}, {40, 1}}; },
       {"combine: bias is bfloat16 [4, 32] with strides [40, 1]"}},
      {"bias at null",
       [](auto& a) { a.bias[1] = {nullptr, bf16_type, {4, 32}}; },
       {"combine: bias is bfloat16 [4, 32] at null"}},
      {"bias misaligned",
       [](auto& a) { a.bias[1] = {odd(), bf16_type, {4, 32}}; },
       {"combine: bias is at address "}},
      {"config",
       [](auto& a) { a.config.emplace(); },
       {"combine: config was given"},
       errc::unsupported},
      {"allocate_on_comm_stream",
       [](auto& a) { a.allocate_on_comm_stream = true; },
       {"combine: allocate_on_comm_stream was given"},
       errc::unsupported},
  };
  return all;
}

/// Makes the call with `args` spoilt, which must be refused.
template <class Args, class Call>
void expect_refused(const bad<Args>& one, Args args, Call&& call) {
  one.spoil(args);
  in_case(std::string{one.name}, [&] {
    test::expect_error(one.code, {one.says[0], one.says[1]},
                       [&] { static_cast<void>(call(args)); });
  });
}

/// Makes the call with `args`, spoilt on rank `culprit`: refused on all ranks, for that reason.
template <class Args, class Call>
void expect_refused_by(std::size_t culprit, std::size_t rank, const bad<Args>& one,
                       const Args& args, Call&& call) {
  if (rank == culprit) return expect_refused(one, args, call);
  in_case(std::string{one.name}, [&] {
    test::expect_error(
        errc::refused,
        {peerbus::detail::concat("rank ", culprit, " was given bad arguments"), one.says[0]},
        [&] { static_cast<void>(call(args)); });
  });
}

}  // namespace normal
