// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include <peerbus/compat/deep_ep/event.hpp>
#include <peerbus/compat/deep_ep/tensor.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/log.hpp>
#include <peerbus/moe/config.hpp>

/// @file
/// The arguments and results of the expanded form of DeepEP V2's calls (`do_expand`), with its
/// names: one row per (token, local expert), grouped by expert. In shapes: T tokens of this rank, B
/// most tokens of a rank, H hidden, K slots, E experts of all ranks, L experts of this rank, R
/// ranks, N received tokens (each counted once), M rows including the gaps between experts. Without
/// do_cpu_sync, N and M are the most that a dispatch can bring, and the rows behind the received
/// ones are not set.
namespace peerbus::deep_ep {

/// Options of an `elastic_buffer`; equal on all ranks, except for `stream_from`, `between` and
/// `log`.
struct elastic_options {
  /// The number of tokens of a rank that the first dispatch of a shape allocates for, unless that
  /// dispatch states a number. A dispatch in which a rank has more tokens allocates more, on all
  /// ranks.
  std::size_t num_max_tokens_per_rank = 4096;
  std::size_t in_flight = 2;                 ///< see `buffer_options`
  std::optional<std::size_t> stream_from{};  ///< see `buffer_options`
  std::size_t between = 0;                   ///< see `buffer_options`
  /// Refused if true. The rows of a token on one rank would be added up and rounded there. Here all
  /// rows of a token are added up once, at its home rank.
  bool allow_multiple_reduction = false;
  moe::relay relay = moe::relay::never;  ///< see `buffer_options`
  stderr_log log{};                      ///< see `buffer_options`
};

namespace detail {
struct expanded_routing;
}  // namespace detail

/// The plan of an expanded dispatch, for any number of combines and of further dispatches to the
/// same experts. A copy of a handle is the same plan. `topk_idx` is valid as long as the handle;
/// the other tensors are views of the buffer's memory, valid as long as the other results of the
/// dispatch.
struct elastic_handle {
  std::size_t num_experts = 0;       ///< E
  std::size_t expert_alignment = 1;  ///< `expert_alignment` of the dispatch
  /// B: the `num_max_tokens_per_rank` of the dispatch. If it had none, the number of tokens of a
  /// rank that the memory had room for.
  std::size_t num_max_tokens_per_rank = 0;
  std::size_t num_recv_tokens = 0;                 ///< N
  std::size_t num_expanded_tokens = 0;             ///< M
  tensor psum_num_recv_tokens_per_scaleup_rank{};  ///< int32 [R]: tokens from ranks 0 to r
  /// int32 [L]: the end of the rows of expert e. The rows of expert e begin at the aligned end of
  /// the rows of expert e - 1.
  tensor psum_num_recv_tokens_per_expert{};
  tensor num_unaligned_recv_tokens_per_expert{};  ///< int32 [L]: received rows of each expert
  /// [L]: the aligned number of rows of each expert; empty without do_cpu_sync.
  std::span<const std::int32_t> num_recv_tokens_per_expert_list{};
  /// int32 [N, K + 2], by source rank, then by token; -1 behind the received tokens. Column 0:
  /// source rank * B + token. Column 1: source rank * K + the first slot that names an expert of
  /// this rank. Columns 2 to K + 1: the row of each slot, or -1.
  tensor recv_src_metadata{};
  const_tensor topk_idx{};  ///< int64 [T, K]: a copy, negative ids as -1
  std::shared_ptr<detail::expanded_routing> routing{};  ///< kept alive by the handle

  /// Returns whether this is the handle of a dispatch.
  [[nodiscard]] explicit operator bool() const noexcept { return routing != nullptr; }
};

/// The arguments of `elastic_buffer::dispatch`, which reads the tensors before it returns.
struct elastic_dispatch_args {
  const_tensor x{};         ///< bfloat16, float8_e4m3fn or int8 [T, H]
  const_tensor x_scales{};  ///< see `dispatch_args`
  /// A handle of this buffer whose routing is used again. `topk_idx` must then be none.
  /// `num_experts`, `num_max_tokens_per_rank` and `expert_alignment` must be left out or equal to
  /// the handle's. The results have the rows and the handle of the handle's dispatch.
  elastic_handle handle{};
  const_tensor topk_idx{};                      ///< int64 or int32 [T, K], negative: no expert
  const_tensor topk_weights{};                  ///< float32 [T, K], or none
  tensor cumulative_local_expert_recv_stats{};  ///< int32 [L], or none; the call adds received rows
  std::size_t num_experts = 0;                  ///< E
  /// B, the largest number of tokens that a rank gives to this call, equal on all ranks; or none:
  /// any number.
  std::optional<std::size_t> num_max_tokens_per_rank{};
  /// The number of which the first row of each expert is a multiple; none: 1.
  std::optional<std::size_t> expert_alignment{};
  bool do_expand = true;         ///< false is refused: use `buffer::dispatch` for that form
  bool do_zero_padding = false;  ///< if true, the call writes zeros to the gaps
  /// If false, N and M of the tensors are the largest possible numbers instead of the received
  /// ones. None: true, or false with a handle. Must not be true with a handle.
  std::optional<bool> do_cpu_sync{};
  bool use_tma_aligned_col_major_sf = false;      ///< refused
  std::size_t num_sms = 0;                        ///< other than 0 is refused
  std::size_t num_qps = 0;                        ///< other than 0 is refused
  std::optional<event_overlap> previous_event{};  ///< the call waits for it first
  bool async_with_compute_stream = false;         ///< results are valid on return in any case
  bool allocate_on_comm_stream = false;           ///< refused
  std::optional<deadline> until{};                ///< none: the communicator's default
};

/// The received rows of an expanded dispatch. The tensors are views of the buffer's memory, valid
/// until the `in_flight`th next dispatch of the same shape.
struct elastic_dispatch_result {
  tensor recv_x{};             ///< [M, H]; rows of an expert lie by source rank, then by token
  tensor recv_x_scales{};      ///< scales of received rows; none without x_scales
  tensor recv_topk_weights{};  ///< float32 [M]; none without topk_weights
  elastic_handle handle{};     ///< for `combine`, or for another dispatch
  event_overlap event{};       ///< nothing to wait for
};

/// The arguments of `elastic_buffer::combine`. `bias` must stay valid and unchanged until the
/// result is received.
struct elastic_combine_args {
  const_tensor x{};  ///< bfloat16 [M, H], in the order of `recv_x`; read before the call returns
  elastic_handle handle{};                        ///< the handle of the dispatch
  const_tensor topk_weights{};                    ///< float32 [M], or none on all ranks
  std::array<const_tensor, 2> bias{};             ///< bfloat16 [T, H] each, or none
  std::size_t num_sms = 0;                        ///< other than 0 is refused
  std::size_t num_qps = 0;                        ///< other than 0 is refused
  std::optional<event_overlap> previous_event{};  ///< the call waits for it first
  bool async_with_compute_stream = false;         ///< results are valid after the event's wait
  bool allocate_on_comm_stream = false;           ///< refused
  std::optional<deadline> until{};                ///< none: the communicator's default
};

/// The sums of an expanded combine: combined_x[t] = bf16(bias[0][t] + bias[1][t] + the rows of its
/// slots), added in f32 in the order of the slots. Weights are not applied.
/// combined_topk_weights[t, k] is the weight of the row of that slot, and 0 for a slot of -1. The
/// tensors are views of the buffer's memory, valid until the handle is combined or dispatched
/// again, and no longer than until the `in_flight`th next dispatch.
struct elastic_combine_result {
  tensor combined_x{};             ///< bfloat16 [T, H]
  tensor combined_topk_weights{};  ///< float32 [T, K]; none without topk_weights
  event_overlap event{};           ///< completes the sums, if `async_with_compute_stream` was set
};

}  // namespace peerbus::deep_ep
