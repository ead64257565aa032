// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include <peerbus/compat/deep_ep/detail/pending_operation.hpp>
#include <peerbus/compat/deep_ep/event.hpp>
#include <peerbus/compat/deep_ep/tensor.hpp>
#include <peerbus/core/deadline.hpp>

/// The arguments and results of the expanded form of DeepEP V2's calls (`do_expand`), by its names:
/// a row per (token, local expert), grouped by expert. T tokens of this rank, B at most per rank, H
/// hidden, K slots, E experts of all ranks, L of this one, R ranks, N tokens that came (each once),
/// M rows with the gaps between experts.
namespace peerbus::deep_ep {

struct elastic_options {
  std::size_t num_max_tokens_per_rank = 4096;  ///< B
  std::size_t in_flight = 2;                   ///< as in `buffer_options`
  /// Refused: rows of one rank would be added up and rounded there. Here all rows of a token are
  /// added up once, at home.
  bool allow_multiple_reduction = false;
};

struct elastic_dispatch_args {
  const_tensor x{};                             ///< bfloat16, float8_e4m3fn or int8 [T, H]
  const_tensor x_scales{};                      ///< float32 or int32 [T, S], contiguous; none
  const_tensor topk_idx{};                      ///< int64 or int32 [T, K], -1: none
  const_tensor topk_weights{};                  ///< float32 [T, K], or none
  tensor cumulative_local_expert_recv_stats{};  ///< int32 [L]; rows are added
  std::size_t num_experts = 0;                  ///< E
  std::optional<std::size_t> num_max_tokens_per_rank{};  ///< B, if given
  std::size_t expert_alignment = 1;                      ///< each expert's rows begin at a multiple
  bool do_expand = true;         ///< false is refused: `buffer::dispatch` has that form
  bool do_zero_padding = false;  ///< zeroes the gaps
  bool do_cpu_sync = true;       ///< false is refused
  bool use_tma_aligned_col_major_sf = false;  ///< refused
  std::size_t num_sms = 0;                    ///< other than 0 is refused
  std::size_t num_qps = 0;                    ///< likewise
  std::optional<event_overlap> previous_event{};
  bool async_with_compute_stream = false;  ///< results are there on return all the same
  bool allocate_on_comm_stream = false;    ///< refused
  std::optional<deadline> until{};
};

/// Views of the buffer's memory, valid as the dispatch's other results.
struct elastic_handle {
  std::size_t num_experts = 0;
  std::size_t expert_alignment = 1;
  std::size_t num_max_tokens_per_rank = 0;
  std::size_t num_recv_tokens = 0;                 ///< N
  std::size_t num_expanded_tokens = 0;             ///< M
  tensor psum_num_recv_tokens_per_scaleup_rank{};  ///< int32 [R]: tokens from ranks 0 to r
  /// int32 [L]: where the rows of expert e end; they begin at the aligned end of those of e - 1.
  tensor psum_num_recv_tokens_per_expert{};
  tensor num_unaligned_recv_tokens_per_expert{};                  ///< int32 [L]
  std::span<const std::int32_t> num_recv_tokens_per_expert_list;  ///< [L], aligned
  /// int32 [N, K + 2], by source rank, then by token: source rank * B + token; source rank * K +
  /// its first slot here; then, per slot, its row, or -1.
  tensor recv_src_metadata{};
  detail::pending_operation batch{};  ///< which dispatch
};

/// Views of the buffer's memory, valid until the `in_flight`th next dispatch of the same shape.
struct elastic_dispatch_result {
  tensor recv_x{};             ///< [M, H]; an expert's rows lie by source rank, then by token
  tensor recv_x_scales{};      ///< [M, S]; none without
  tensor recv_topk_weights{};  ///< float32 [M]; none without topk_weights
  elastic_handle handle{};
  event_overlap event{};
};

/// `bias` stays as and where it is until the result is received.
struct elastic_combine_args {
  const_tensor x{};  ///< bfloat16 [M, H], rows as `recv_x`'s; read before the call returns
  elastic_handle handle{};
  const_tensor topk_weights{};         ///< float32 [M], or none on all ranks
  std::array<const_tensor, 2> bias{};  ///< bfloat16 [T, H] each, or none
  std::size_t num_sms = 0;             ///< other than 0 is refused
  std::size_t num_qps = 0;             ///< likewise
  std::optional<event_overlap> previous_event{};
  bool async_with_compute_stream = false;
  bool allocate_on_comm_stream = false;  ///< refused
  std::optional<deadline> until{};
};

/// combined_x[t] = bf16(bias[0][t] + bias[1][t] + the rows of its slots, in order and in f32):
/// weights are not applied. combined_topk_weights[t, k] is the weight of that slot's row, 0 for -1.
struct elastic_combine_result {
  tensor combined_x{};             ///< bfloat16 [T, H]
  tensor combined_topk_weights{};  ///< float32 [T, K]; none without topk_weights
  event_overlap event{};
};

}  // namespace peerbus::deep_ep
