// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus::deep_ep {

/// The operations of DeepEP's API that a platform can be asked about.
enum class operation : std::uint8_t {
  normal_dispatch,        ///< `dispatch`
  normal_combine,         ///< `combine`
  low_latency_dispatch,   ///< `low_latency_dispatch`
  low_latency_combine,    ///< `low_latency_combine`
  ep_dispatch,            ///< `EPBuffer.dispatch` of version 2.5
  ep_combine,             ///< `EPBuffer.combine` of version 2.5
  bucket_all_gather,      ///< `BucketBuffer.all_gather` of version 2.5
  bucket_reduce_scatter,  ///< `BucketBuffer.reduce_scatter` of version 2.5
  bucket_all_reduce,      ///< `BucketBuffer.all_reduce` of version 2.5
  ep_prefetch_weights     ///< `EPBuffer.lb_prefetch_weights` of version 2.5
};

/// Returns the name of DeepEP's function for `what`.
constexpr std::string_view to_string(operation what) noexcept {
  switch (what) {
    case operation::normal_dispatch: return "dispatch";
    case operation::normal_combine: return "combine";
    case operation::low_latency_dispatch: return "low_latency_dispatch";
    case operation::low_latency_combine: return "low_latency_combine";
    case operation::ep_dispatch: return "EPBuffer.dispatch";
    case operation::ep_combine: return "EPBuffer.combine";
    case operation::bucket_all_gather: return "BucketBuffer.all_gather";
    case operation::bucket_reduce_scatter: return "BucketBuffer.reduce_scatter";
    case operation::bucket_all_reduce: return "BucketBuffer.all_reduce";
    case operation::ep_prefetch_weights: return "EPBuffer.lb_prefetch_weights";
  }
  return "unknown";
}

/// Returns whether `what` belongs to DeepEP's low-latency mode.
constexpr bool is_low_latency(operation what) noexcept {
  return what == operation::low_latency_dispatch || what == operation::low_latency_combine;
}
/// Returns whether `what` is a dispatch or combine, whose calls have tokens and experts.
constexpr bool moves_tokens(operation what) noexcept { return what <= operation::ep_combine; }
/// Returns whether `what` is a dispatch or combine of version 2.5's `EPBuffer`, rather than of
/// `Buffer`.
constexpr bool is_ep(operation what) noexcept {
  return what == operation::ep_dispatch || what == operation::ep_combine;
}
/// Returns whether `what` sends tokens to experts, rather than outputs home.
constexpr bool is_dispatch(operation what) noexcept {
  return what == operation::normal_dispatch || what == operation::low_latency_dispatch ||
         what == operation::ep_dispatch;
}

/// The type of the values in `x`.
enum class element_type : std::uint8_t {
  bf16,      ///< torch.bfloat16
  fp8_e4m3,  ///< torch.float8_e4m3fn
  other      ///< any other type
};

/// Returns the name of the enumerator, or "unknown".
constexpr std::string_view to_string(element_type type) noexcept {
  switch (type) {
    case element_type::bf16: return "bf16";
    case element_type::fp8_e4m3: return "fp8_e4m3";
    case element_type::other: return "other";
  }
  return "unknown";
}

/// CANN's `commAlg`: the algorithm by which tokens travel between Ascend NPUs.
enum class comm_algorithm : std::uint8_t {
  /// fullmesh_v1 on A3. On A2, fullmesh within a node; between nodes, hierarchy for the numbers of
  /// ranks that hierarchy supports, and fullmesh for others.
  automatic,
  fullmesh_v1,  ///< every rank to every other, on A3
  fullmesh_v2,  ///< every rank to every other, with flags among the data, on A3
  fullmesh,     ///< every rank to every other, on A2
  hierarchy     ///< between nodes, then within a node; on A2
};

/// Returns the name of the enumerator, or "unknown".
constexpr std::string_view to_string(comm_algorithm algorithm) noexcept {
  switch (algorithm) {
    case comm_algorithm::automatic: return "automatic";
    case comm_algorithm::fullmesh_v1: return "fullmesh_v1";
    case comm_algorithm::fullmesh_v2: return "fullmesh_v2";
    case comm_algorithm::fullmesh: return "fullmesh";
    case comm_algorithm::hierarchy: return "hierarchy";
  }
  return "unknown";
}

/// The environment variables of the machine where the code will run. peerbus reads no environment
/// variable for this; the caller states the values of the target.
struct target_environment {
  std::size_t hccl_buffsize_mb = 0;      ///< HCCL_BUFFSIZE; 0: not set, which means 200
  std::size_t nvshmem_qp_depth = 0;      ///< NVSHMEM_QP_DEPTH; 0: not set, which means 1024
  bool moe_enable_topk_neg_one = false;  ///< MOE_ENABLE_TOPK_NEG_ONE
  /// DEEPEP_NORMAL_LONG_SEQ_ROUND: the rounds in which DeepEP-Ascend's normal mode sends a batch. A
  /// round has at most 8192 tokens (DEEPEP_NORMAL_LONG_SEQ_PER_ROUND_TOKENS).
  std::size_t normal_long_seq_rounds = 1;
  friend constexpr bool operator==(const target_environment&, const target_environment&) = default;
};

/// The arguments of one call of DeepEP's API, as plain values. Members that belong to another
/// function are ignored.
struct call {
  operation what = operation::low_latency_dispatch;  ///< the function that is called

  std::size_t ranks = 0;           ///< number of ranks of the group
  std::size_t ranks_per_node = 0;  ///< 0: the usual 8; has no effect on A3
  std::size_t tokens = 0;          ///< tokens of this rank
  /// num_max_dispatch_tokens_per_rank of low latency, or num_max_tokens_per_rank of `EPBuffer`
  std::size_t max_tokens = 0;
  std::size_t hidden = 0;   ///< values of a token
  std::size_t top_k = 0;    ///< columns of topk_idx; 0 in normal mode if no topk_idx is given
  std::size_t experts = 0;  ///< number of experts of all ranks
  element_type dtype = element_type::bf16;  ///< type of `x`
  bool dropped = false;                     ///< topk_idx has slots without an expert, such as -1
  bool narrow_topk_idx = false;             ///< topk_idx is given and is not int64
  bool gaps_in_x = false;                   ///< `x` is not contiguous

  // The `Buffer`
  bool no_low_latency_mode = false;             ///< the buffer was made without low_latency_mode
  std::optional<std::size_t> num_nvl_bytes{};   ///< none: not known, so not checked
  std::optional<std::size_t> num_rdma_bytes{};  ///< none: not known, so not checked

  // low_latency_dispatch
  bool use_fp8 = false;                      ///< fp8 travels; int8 on Ascend
  bool round_scale = false;                  ///< scales are powers of two
  bool use_ue8m0 = false;                    ///< scales are packed exponents
  bool cumulative_statistics_given = false;  ///< cumulative_local_expert_recv_stats is given
  bool weights_given = false;                ///< topk_weights is given

  // low_latency_combine
  bool use_logfmt = false;  ///< outputs travel in the LogFMT format
  bool zero_copy = false;   ///< outputs lie in the buffer already
  bool out_given = false;   ///< out is given

  // low_latency_dispatch and low_latency_combine
  bool return_recv_hook = false;  ///< a hook receives the results
  /// True if dispatch_wait_recv_cost_stats or combine_wait_recv_cost_stats is given.
  bool wait_statistics_given = false;

  // dispatch
  std::size_t expert_alignment = 1;  ///< expert counts are rounded up to multiples of this number
  std::size_t num_worst_tokens = 0;  ///< fixed number of rows of the results; 0: not fixed
  bool cached_handle = false;        ///< handle is given

  // combine
  bool bias_given = false;  ///< bias is given

  // dispatch and combine
  bool config_given = false;             ///< config is given
  bool previous_event_given = false;     ///< previous_event is given
  bool allocate_on_comm_stream = false;  ///< results belong to the communication stream

  // EPBuffer, and its dispatch and combine
  bool do_expand = false;                ///< rows are grouped by expert
  bool do_handle_copy = false;           ///< the handle copies topk_idx
  bool allow_multiple_reduction = true;  ///< a rank may add up its rows of a token
  bool sl_idx_given = false;             ///< sl_idx is given
  std::size_t num_qps = 0;               ///< num_qps or num_allocated_qps; 0: automatic
  std::size_t num_sms = 0;               ///< 0: automatic

  // Functions of BucketBuffer
  std::size_t tensors = 0;  ///< number of tensors in the list
  /// The greatest common divisor of the sizes of these tensors on this rank, in bytes; 0 if a
  /// tensor is empty.
  std::size_t tensor_bytes = 0;

  // All functions
  bool async_finish = false;  ///< an event completes the results

  comm_algorithm algorithm = comm_algorithm::automatic;  ///< algorithm of the Ascend operators
  target_environment environment{};  ///< the variables that are set on the target
};

}  // namespace peerbus::deep_ep
