// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>

#include <peerbus/compat/deep_ep/call.hpp>
#include <peerbus/compat/deep_ep/detail/pending_operation.hpp>
#include <peerbus/compat/deep_ep/profile.hpp>
#include <peerbus/compat/deep_ep/tensor.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/moe/config.hpp>

/// @file
/// The arguments and results of DeepEP-Ascend's low-latency calls: DeepEP's names, with results in
/// the layout of CANN's operators. In shapes: T tokens of this rank, B most tokens of a rank, H
/// hidden, K slots, E experts of all ranks, L experts of this rank, R ranks, A received rows.
namespace peerbus::deep_ep {

/// Options of an `ascend_buffer`; equal on all ranks.
struct ascend_options {
  std::size_t in_flight = 2;              ///< see `buffer_options`
  profile target = profile::ascend_a3;    ///< ascend_a3 or ascend_a2: the limits to obey
  target_environment target_is{};         ///< the environment variables of the target
  std::size_t target_ranks_per_node = 0;  ///< 0: the usual number of the target
  moe::relay relay = moe::relay::never;   ///< see `buffer_options`
};

/// The arguments of `ascend_buffer::low_latency_dispatch`, which reads the tensors before it
/// returns.
struct ascend_dispatch_args {
  const_tensor x{};                                  ///< bfloat16 [T, H]
  const_tensor topk_idx{};                           ///< int64 or int32 [T, K], -1: no expert
  std::size_t num_max_dispatch_tokens_per_rank = 0;  ///< B
  std::size_t num_experts = 0;                       ///< E, a multiple of the ranks
  bool use_fp8 = true;              ///< sends int8 with one scale per token, as DeepEP-Ascend does
  std::optional<deadline> until{};  ///< none: the communicator's default
};

/// The handle of a dispatch, for its combine. The tensors are views of the buffer's memory, valid
/// as long as the other results of the dispatch.
struct ascend_handle {
  tensor expand_idx{};      ///< int32 [A, 3]: source rank, token index there, slot (assist info)
  tensor ep_recv_counts{};  ///< int32 [L * R]: prefix sums by local expert, then by source rank
  detail::pending_operation batch{};  ///< identifies the dispatch
};

/// The received rows of a dispatch. The tensors are views of the buffer's memory, valid until the
/// `in_flight`th next dispatch of the same shape.
struct ascend_dispatch_result {
  /// [R * B * min(K, L), H], int8 or bfloat16: the received rows by local expert, then by source
  /// rank, then by token. The memory after these rows is unwritten.
  tensor recv_x{};
  tensor recv_x_scales{};  ///< float32 [R * B * min(K, L)]; none without use_fp8
  tensor recv_count{};     ///< int64 [L]: number of rows of each local expert
  ascend_handle handle{};  ///< for `low_latency_combine`
};

/// The arguments of `ascend_buffer::low_latency_combine`, which reads the tensors before it
/// returns.
struct ascend_combine_args {
  const_tensor x{};                 ///< bfloat16 [A or more, H], in the order of `recv_x`
  const_tensor topk_idx{};          ///< equal to the topk_idx of the dispatch
  const_tensor topk_weights{};      ///< float32 [T, K]
  ascend_handle handle{};           ///< the handle of the dispatch
  std::optional<deadline> until{};  ///< none: the communicator's default
};

/// The sums of a combine, weighted at the home rank as by `buffer::low_latency_combine`. Valid
/// until the `in_flight`th next dispatch of the same shape is combined, or this handle is combined
/// again.
struct ascend_combine_result {
  tensor combined_x{};  ///< bfloat16 [T, H], in the buffer's memory
};

}  // namespace peerbus::deep_ep
