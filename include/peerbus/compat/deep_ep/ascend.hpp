// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>

#include <peerbus/compat/deep_ep/call.hpp>
#include <peerbus/compat/deep_ep/detail/pending_operation.hpp>
#include <peerbus/compat/deep_ep/profile.hpp>
#include <peerbus/compat/deep_ep/tensor.hpp>
#include <peerbus/core/deadline.hpp>

/// The low-latency calls as DeepEP-Ascend has them: DeepEP's names, but results in the layout of
/// CANN's operators. T tokens of this rank, B at most per rank, H hidden, K slots, E experts of all
/// ranks, L of this one, R ranks, A rows that came.
namespace peerbus::deep_ep {

struct ascend_options {
  std::size_t in_flight = 2;              ///< as in `buffer_options`
  profile target = profile::ascend_a3;    ///< or ascend_a2; whose limits hold
  target_environment target_is{};         ///< what is set there
  std::size_t target_ranks_per_node = 0;  ///< 0: the platform's usual
};

struct ascend_dispatch_args {
  const_tensor x{};                                  ///< bfloat16 [T, H]
  const_tensor topk_idx{};                           ///< int64 or int32 [T, K], -1: none
  std::size_t num_max_dispatch_tokens_per_rank = 0;  ///< B
  std::size_t num_experts = 0;                       ///< E, a multiple of the ranks
  bool use_fp8 = true;  ///< int8, one scale per token: its meaning there
  std::optional<deadline> until{};
};

/// Views of the buffer's memory, valid as the dispatch's other results.
struct ascend_handle {
  tensor expand_idx{};      ///< int32 [A, 3]: source rank, token there, slot (assist info)
  tensor ep_recv_counts{};  ///< int32 [L * R]: prefix sums by local expert, then by source rank
  detail::pending_operation batch{};  ///< which dispatch
};

/// Views of the buffer's memory, valid until the `in_flight`th next dispatch of the same shape.
struct ascend_dispatch_result {
  /// [R * B * min(K, L), H], int8 or bfloat16: the rows that came, expert after expert, within each
  /// by source rank, then by token; what is behind is unwritten.
  tensor recv_x{};
  tensor recv_x_scales{};  ///< float32 [R * B * min(K, L)]; none without use_fp8
  tensor recv_count{};     ///< int64 [L]
  ascend_handle handle{};
};

struct ascend_combine_args {
  const_tensor x{};             ///< bfloat16 [A or more, H], rows as `recv_x`'s
  const_tensor topk_idx{};      ///< as the dispatch was given
  const_tensor topk_weights{};  ///< float32 [T, K]
  ascend_handle handle{};
  std::optional<deadline> until{};
};

/// Weighted at home as `low_latency_combine`.
struct ascend_combine_result {
  tensor combined_x{};  ///< bfloat16 [T, H], memory of the buffer
};

}  // namespace peerbus::deep_ep
