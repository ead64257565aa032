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

/// @file
/// The arguments and results of DeepEP's normal (high-throughput) calls, with its names. In shapes:
/// T tokens of this rank, H hidden, K slots, E experts of all ranks, L experts of this rank, R
/// ranks, N rows received by this rank. A tensor that is none has no dimensions.
namespace peerbus::deep_ep {

/// The counts that `get_dispatch_layout` makes. The tensors are views of `memory`.
struct dispatch_layout {
  tensor num_tokens_per_rank{};       ///< int32 [R], each token once per rank
  tensor num_tokens_per_rdma_rank{};  ///< always none: all ranks are reached the same way
  tensor num_tokens_per_expert{};     ///< int32 [E]
  tensor is_token_in_rank{};          ///< bool [T, R]
  event_overlap event{};              ///< nothing to wait for
  std::shared_ptr<void> memory{};     ///< keeps the tensors valid
};

namespace detail {
class normal_channel;
struct normal_routing;
}  // namespace detail

/// The routing of a dispatch, for its combine or for dispatching other data to the same ranks. A
/// handle keeps the routing alive. `is_token_in_rank` is valid as long as the handle; its other
/// tensors as long as the other results of the dispatch. The matrices in DeepEP's handle that
/// number its channels and queues have no counterpart.
struct dispatch_handle {
  /// int32 [R]: the number of rows from ranks 0 to r; a column of rank_prefix_matrix. With
  /// `buffer_options::relay` the rows lie in another order of source ranks.
  tensor rank_prefix{};
  tensor recv_src_idx{};      ///< int32 [N]: the token's index at its sender
  tensor is_token_in_rank{};  ///< bool [T, R]
  /// The `num_max_tokens_per_rank` of the dispatch. If it had none, the number of tokens of a rank
  /// that the memory had room for.
  std::size_t num_max_tokens_per_rank = 0;
  std::shared_ptr<detail::normal_routing> routing{};  ///< kept alive by the handle

  /// Returns whether this is the handle of a dispatch.
  [[nodiscard]] explicit operator bool() const noexcept { return routing != nullptr; }
};

/// The arguments of `buffer::dispatch`, which reads the tensors before it returns.
struct dispatch_args {
  const_tensor x{};  ///< bfloat16, float8_e4m3fn or int8 [T, H]; a row is a multiple of 16 bytes
  /// float32, int32, int8 or float8_e4m3fn [T, S] with any strides, or [T]; or none
  const_tensor x_scales{};
  /// A handle whose routing is used instead of all tensors below, which must then be none. The
  /// result then has only x and scales.
  dispatch_handle handle{};
  const_tensor num_tokens_per_rank{};       ///< int32 [R], from `get_dispatch_layout`; checked
  const_tensor num_tokens_per_rdma_rank{};  ///< must be none
  const_tensor is_token_in_rank{};          ///< bool [T, R]; checked if topk_idx is given
  const_tensor num_tokens_per_expert{};     ///< int32 [E], from `get_dispatch_layout`
  /// int64 or int32 [T, K]; a negative id names no expert. If none, `is_token_in_rank` decides
  /// where tokens go. `buffer_options::other_ids` states what happens to ids of E and more.
  const_tensor topk_idx{};
  const_tensor topk_weights{};  ///< float32 [T, K]; must be given with topk_idx, and only then
  /// The counts in `num_recv_tokens_per_expert_list` are rounded up to multiples of this. Must be 1
  /// with a handle.
  std::size_t expert_alignment = 1;
  /// The number of rows of the results, of later dispatches with their handle, and of tensors for
  /// `combine`. Equal on all ranks. If a rank receives more rows, all ranks throw `error`
  /// invalid_argument. 0: the number of rows that arrive. Requires topk_idx; must be 0 with a
  /// handle.
  std::size_t num_worst_tokens = 0;
  /// B, the largest number of tokens that a rank gives to this call, equal on all ranks; 0: any
  /// number. Must be 0 with a handle.
  std::size_t num_max_tokens_per_rank = 0;
  std::optional<deep_ep::config> config{};        ///< refused
  std::optional<event_overlap> previous_event{};  ///< the call waits for it first
  bool async_finish = false;                      ///< results are valid on return in any case
  bool allocate_on_comm_stream = false;           ///< refused
  std::optional<deadline> until{};                ///< none: the communicator's default
};

/// The received rows of a dispatch, by source rank, then by token. The tensors are views of the
/// buffer's memory, valid until the `in_flight`th next dispatch of the same shape.
struct dispatch_result {
  tensor recv_x{};             ///< [N, H]; N is the number of rows that arrive, or num_worst_tokens
  tensor recv_x_scales{};      ///< scales of received rows; none without x_scales
  tensor recv_topk_idx{};      ///< int64 [N, K]: local expert or -1; -1 in rows that did not arrive
  tensor recv_topk_weights{};  ///< float32 [N, K], 0 where the index is -1
  /// [L]: rows of each local expert, rounded up to a multiple of expert_alignment. Empty with
  /// num_worst_tokens or a handle.
  std::span<const std::int32_t> num_recv_tokens_per_expert_list{};
  dispatch_handle handle{};  ///< for `combine`, or for another dispatch
  event_overlap event{};     ///< nothing to wait for
};

/// The arguments of `buffer::combine`. `bias` must stay valid and unchanged until the result is
/// received.
struct combine_args {
  const_tensor x{};  ///< bfloat16 [N, H], in the order of `recv_x`; read before the call returns
  dispatch_handle handle{};                       ///< the handle of the dispatch
  const_tensor topk_weights{};                    ///< float32 [N, K], or none on all ranks
  std::array<const_tensor, 2> bias{};             ///< bfloat16 [T, H] each, or none
  std::optional<deep_ep::config> config{};        ///< refused
  std::optional<event_overlap> previous_event{};  ///< the call waits for it first
  bool async_finish = false;                      ///< results are valid after the event's wait
  bool allocate_on_comm_stream = false;           ///< refused
  std::optional<deadline> until{};                ///< none: the communicator's default
};

/// The sums of a combine: combined_x[t] = bf16(bias[0][t] + bias[1][t] + the rows of the ranks that
/// token t went to), added in f32 in the order of the ranks. Weights are not applied.
/// combined_topk_weights[t, k] is the f32 sum of the weights of these rows. The tensors are views
/// of the buffer's memory, valid as long as the results of the combined dispatch, and until the
/// handle is combined again.
struct combine_result {
  tensor combined_x{};             ///< bfloat16 [T, H]
  tensor combined_topk_weights{};  ///< float32 [T, K]; none without topk_weights
  event_overlap event{};           ///< completes the sums, if `async_finish` was set
};

}  // namespace peerbus::deep_ep
