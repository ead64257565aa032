// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>

#include <peerbus/compat/deep_ep/event.hpp>
#include <peerbus/compat/deep_ep/tensor.hpp>
#include <peerbus/core/deadline.hpp>

/// The arguments and results of DeepEP's low-latency calls, by its names. T tokens of this rank, H
/// hidden, K slots, E experts of all ranks, L of this one, R ranks, B tokens at most per rank.
namespace peerbus::deep_ep {

/// `x` and the statistics stay as and where they are until the results are received.
struct low_latency_dispatch_args {
  const_tensor x{};                                  ///< bfloat16 [T, H]
  const_tensor topk_idx{};                           ///< int64 or int32 [T, K], -1: none
  std::size_t num_max_dispatch_tokens_per_rank = 0;  ///< B, the same on all ranks
  std::size_t num_experts = 0;                       ///< E; need not divide by the ranks
  /// int32 [L]; the rows of each expert are added.
  tensor cumulative_local_expert_recv_stats{};
  /// int64 [R]; nanoseconds waited for each rank are added (DeepEP counts clock cycles).
  tensor dispatch_wait_recv_cost_stats{};
  bool use_fp8 = true;
  bool round_scale = false;       ///< scales are powers of two
  bool use_ue8m0 = false;         ///< scales are packed exponents; requires round_scale
  bool async_finish = false;      ///< results are valid after the event's wait
  bool return_recv_hook = false;  ///< results are valid after the hook's call
  std::optional<deadline> until{};
};

/// What a combine must know of its dispatch. The tensors are views of the buffer's memory, valid as
/// long as the dispatch's other results.
struct low_latency_handle {
  tensor src_info{};  ///< int32 [L, R*B]: the token's index at its sender; rows that came only
  /// int64 [L, R]: rows from that rank in the low half, the first of them in the high.
  tensor layout_range{};
  std::size_t num_max_dispatch_tokens_per_rank = 0;
  std::size_t hidden = 0;
  std::size_t num_experts = 0;
  detail::pending_operation batch{};  ///< which dispatch
};

/// Views of the buffer's memory, valid until the `in_flight`th next low-latency dispatch of the
/// same geometry and format. Rows of an expert lie by source rank, then by token; those from its
/// count on are unwritten.
struct low_latency_dispatch_result {
  tensor recv_x{};  ///< [L, R*B, H], float8_e4m3fn or bfloat16
  /// With fp8: float32 [L, R*B, H/128], or int32 [L, R*B, H/512 rounded up] of four UE8M0 each, the
  /// first in the lowest byte; stored column by column (strides [.., 1, R*B]), as DeepGEMM reads
  /// it.
  tensor recv_x_scales{};
  tensor recv_count{};  ///< int32 [L]
  low_latency_handle handle{};
  event_overlap event{};
  recv_hook hook{};
};

/// `topk_weights`, `out` and the statistics stay as and where they are until the result is
/// received.
struct low_latency_combine_args {
  /// bfloat16 [L, R*B, H], rows as `recv_x`'s, of any row stride; with zero_copy, what
  /// `get_next_low_latency_combine_buffer` gave. Read before the call returns.
  const_tensor x{};
  const_tensor topk_idx{};      ///< as the dispatch was given
  const_tensor topk_weights{};  ///< float32 [T, K]
  low_latency_handle handle{};
  bool use_logfmt = false;  ///< refused
  bool zero_copy = false;   ///< needs `buffer_options::zero_copy`
  bool async_finish = false;
  bool return_recv_hook = false;
  tensor out{};  ///< bfloat16 [T, H], or none: memory of the buffer
  /// int64 [R]; nanoseconds waited for each rank are added.
  tensor combine_wait_recv_cost_stats{};
  std::optional<deadline> until{};
};

/// combined_x[t] = bf16(the sum over slots k, in order and in f32 by fused multiply-add, of
/// topk_weights[t, k] * the row that came home for that slot); slots of -1 add nothing.
struct low_latency_combine_result {
  tensor combined_x{};  ///< bfloat16 [T, H]
  event_overlap event{};
  recv_hook hook{};
};

}  // namespace peerbus::deep_ep
