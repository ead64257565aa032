// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>

#include <peerbus/compat/deep_ep/event.hpp>
#include <peerbus/compat/deep_ep/tensor.hpp>
#include <peerbus/core/deadline.hpp>

/// @file
/// The arguments and results of DeepEP's low-latency calls, with its names. In shapes: T tokens of
/// this rank, H hidden, K slots, E experts of all ranks, L experts of this rank, R ranks, B most
/// tokens of a rank.
namespace peerbus::deep_ep {

/// The arguments of `buffer::low_latency_dispatch`. `x`, `topk_weights` and the statistics must
/// stay valid until the results are received. `x` and `topk_weights` must not change until then.
struct low_latency_dispatch_args {
  const_tensor x{};                                  ///< bfloat16 [T, H]
  const_tensor topk_idx{};                           ///< int64 or int32 [T, K], negative: no expert
  std::size_t num_max_dispatch_tokens_per_rank = 0;  ///< B, the same on all ranks
  std::size_t num_experts = 0;                       ///< E; need not be a multiple of the ranks
  /// int32 [L], or none. The call adds the number of rows that each expert received.
  tensor cumulative_local_expert_recv_stats{};
  /// int64 [R], or none. The call adds the nanoseconds that it waited for each rank. DeepEP counts
  /// clock cycles.
  tensor dispatch_wait_recv_cost_stats{};
  const_tensor topk_weights{};      ///< float32 [T, K], or none on all ranks; travels with the rows
  bool use_fp8 = true;              ///< rows travel and arrive as fp8, otherwise as bf16
  bool round_scale = false;         ///< scales are powers of two
  bool use_ue8m0 = false;           ///< scales are packed exponents; requires round_scale
  bool async_finish = false;        ///< results are valid after the event's wait
  bool return_recv_hook = false;    ///< results are valid after the hook's call
  std::optional<deadline> until{};  ///< none: the communicator's default
};

/// The handle of a low-latency dispatch, for its combine. The tensors are views of the buffer's
/// memory, valid as long as the other results of the dispatch.
struct low_latency_handle {
  tensor src_info{};  ///< int32 [L, R*B]: index of the token of each received row at its sender
  /// int64 [L, R]: the low 32 bits are the number of rows from that rank, the high 32 bits the
  /// index of its first row.
  tensor layout_range{};
  std::size_t num_max_dispatch_tokens_per_rank = 0;  ///< B
  std::size_t hidden = 0;                            ///< H
  std::size_t num_experts = 0;                       ///< E
  detail::pending_operation batch{};                 ///< identifies the dispatch
};

/// The received rows of a low-latency dispatch. The rows of an expert lie by source rank, then by
/// token. Rows beyond the expert's count are unwritten. The tensors are views of the buffer's
/// memory, valid until the `in_flight`th next low-latency dispatch of the same hidden, experts, K
/// and format, with any B.
struct low_latency_dispatch_result {
  tensor recv_x{};  ///< [L, R*B, H], float8_e4m3fn or bfloat16
  /// With fp8: float32 [L, R*B, H/128], or int32 [L, R*B, H/512 rounded up], where each element has
  /// four UE8M0 scales, the first in the lowest byte. Stored column by column (strides [.., 1,
  /// R*B]), as DeepGEMM reads it.
  tensor recv_x_scales{};
  tensor recv_count{};  ///< int32 [L]
  /// float32 [L, R*B]: weights of received rows; none without topk_weights.
  tensor recv_topk_weights{};
  /// int32 [L, R*B]: source ranks of received rows; none without topk_weights.
  tensor recv_rank_info{};
  low_latency_handle handle{};  ///< for `low_latency_combine`
  event_overlap event{};        ///< completes the results, if `async_finish` was set
  recv_hook hook{};             ///< completes the results, if `return_recv_hook` was set
};

/// The arguments of `buffer::low_latency_combine`. `topk_weights`, `out` and the statistics must
/// stay valid, and `topk_weights` unchanged, until the result is received.
struct low_latency_combine_args {
  /// bfloat16 [L, R*B, H], in the order of `recv_x`, with any row stride. With `zero_copy` it is
  /// the tensor that `get_next_low_latency_combine_buffer` returned. Read before the call returns.
  const_tensor x{};
  /// Equal to the topk_idx of the dispatch. Slots of ranks that are masked or gone may be -1
  /// instead.
  const_tensor topk_idx{};
  const_tensor topk_weights{};  ///< float32 [T, K]
  low_latency_handle handle{};  ///< the handle of the dispatch
  /// If true, outputs travel as LogFMT-10 rows (codec/logfmt10.hpp) and are rounded to that format.
  /// Must be false with `zero_copy`. H must be a multiple of 128. Each rank chooses for its own
  /// outputs.
  bool use_logfmt = false;
  bool zero_copy = false;         ///< needs `buffer_options::zero_copy`
  bool async_finish = false;      ///< the result is valid after the event's wait
  bool return_recv_hook = false;  ///< the result is valid after the hook's call
  /// bfloat16 [T, H], the place of the result. If none, the result lies in the buffer until the
  /// handle is combined again.
  tensor out{};
  /// int64 [R], or none. The call adds the nanoseconds that it waited for each rank.
  tensor combine_wait_recv_cost_stats{};
  std::optional<deadline> until{};  ///< none: the communicator's default
};

/// The sums of a low-latency combine: combined_x[t] = bf16(sum over slots k of topk_weights[t, k] *
/// the returned row of that slot), added in f32 by fused multiply-add in the order of the slots.
/// Slots of -1 add nothing.
struct low_latency_combine_result {
  /// bfloat16 [T, H]: `out`, or a view of the buffer's memory. The view is valid as long as the
  /// results of the dispatch, and until its handle is combined again.
  tensor combined_x{};
  event_overlap event{};  ///< completes the sums, if `async_finish` was set
  recv_hook hook{};       ///< completes the sums, if `return_recv_hook` was set
};

}  // namespace peerbus::deep_ep
