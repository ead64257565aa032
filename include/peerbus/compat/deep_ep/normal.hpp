// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include <peerbus/compat/deep_ep/event.hpp>
#include <peerbus/compat/deep_ep/size_hint.hpp>
#include <peerbus/compat/deep_ep/tensor.hpp>
#include <peerbus/core/deadline.hpp>

/// The arguments and results of DeepEP's normal (high-throughput) calls, by its names. T tokens of
/// this rank, H hidden, K slots, E experts of all ranks, L of this one, R ranks, N rows received.
namespace peerbus::deep_ep {

/// What `get_dispatch_layout` counted; the tensors are views of `memory`.
struct dispatch_layout {
  tensor num_tokens_per_rank{};       ///< int32 [R], each token once per rank
  tensor num_tokens_per_rdma_rank{};  ///< none: all ranks are reached alike
  tensor num_tokens_per_expert{};     ///< int32 [E]
  tensor is_token_in_rank{};          ///< bool [T, R]
  event_overlap event{};
  std::shared_ptr<void> memory{};
};

namespace detail {
class normal_channel;
struct normal_routing;
}  // namespace detail

/// What a combine, or a dispatch of other data along the same ways, must know of a dispatch. Keeps
/// the routing as long as it lives; its tensors are views as the dispatch's other results, but for
/// `is_token_in_rank`, which is the handle's. The matrices of DeepEP's handle that number its
/// channels and queues have no counterpart.
struct dispatch_handle {
  tensor rank_prefix{};       ///< int32 [R]: rows from ranks 0 to r; a column of rank_prefix_matrix
  tensor recv_src_idx{};      ///< int32 [N]: the token's index at its sender
  tensor is_token_in_rank{};  ///< bool [T, R]
  std::shared_ptr<detail::normal_routing> routing{};

  [[nodiscard]] explicit operator bool() const noexcept { return routing != nullptr; }
};

struct dispatch_args {
  const_tensor x{};         ///< bfloat16, float8_e4m3fn or int8 [T, H]; H * element % 16 == 0
  const_tensor x_scales{};  ///< float32 or int32 [T, S] of any strides, or [T]; none
  /// A handle to go by instead of all tensors below, which then are none: what comes back is x and
  /// scales only.
  dispatch_handle handle{};
  const_tensor num_tokens_per_rank{};       ///< what `get_dispatch_layout` gave; checked
  const_tensor num_tokens_per_rdma_rank{};  ///< none
  const_tensor is_token_in_rank{};
  const_tensor num_tokens_per_expert{};
  const_tensor topk_idx{};      ///< int64 or int32 [T, K], -1: none; or none: by is_token_in_rank
  const_tensor topk_weights{};  ///< float32 [T, K]; with topk_idx
  std::size_t expert_alignment = 1;
  std::size_t num_worst_tokens = 0;  ///< rows of the results; at most R * num_max_tokens_per_rank
  std::optional<deep_ep::config> config{};  ///< refused
  std::optional<event_overlap> previous_event{};
  bool async_finish = false;             ///< results are there on return all the same
  bool allocate_on_comm_stream = false;  ///< refused
  std::optional<deadline> until{};
};

/// Views of the buffer's memory, valid until the `in_flight`th next dispatch of the same shape.
/// Rows lie by source rank, then by token.
struct dispatch_result {
  tensor recv_x{};             ///< [N, H], or [num_worst_tokens, H]
  tensor recv_x_scales{};      ///< as x_scales, row by row; none without
  tensor recv_topk_idx{};      ///< int64 [N, K]: local expert or -1; rows from N on are -1
  tensor recv_topk_weights{};  ///< float32 [N, K], 0 where the index is -1
  /// [L], rounded up to expert_alignment; empty with num_worst_tokens or a handle.
  std::span<const std::int32_t> num_recv_tokens_per_expert_list{};
  dispatch_handle handle{};
  event_overlap event{};
};

/// `bias` stays as and where it is until the result is received.
struct combine_args {
  const_tensor x{};  ///< bfloat16 [N, H], rows as `recv_x`'s; read before the call returns
  dispatch_handle handle{};
  const_tensor topk_weights{};              ///< float32 [N, K], or none on all ranks
  std::array<const_tensor, 2> bias{};       ///< bfloat16 [T, H] each, or none
  std::optional<deep_ep::config> config{};  ///< refused
  std::optional<event_overlap> previous_event{};
  bool async_finish = false;             ///< results are valid after the event's wait
  bool allocate_on_comm_stream = false;  ///< refused
  std::optional<deadline> until{};
};

/// combined_x[t] = bf16(bias[0][t] + bias[1][t] + the rows of the ranks that token t went to, in
/// order of ranks and in f32): weights are not applied. combined_topk_weights[t, k] is the f32 sum
/// of those rows' weights. Views of the buffer's memory, valid as a dispatch's results.
struct combine_result {
  tensor combined_x{};             ///< bfloat16 [T, H]
  tensor combined_topk_weights{};  ///< float32 [T, K]; none without topk_weights
  event_overlap event{};
};

}  // namespace peerbus::deep_ep
