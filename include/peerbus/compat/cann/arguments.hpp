// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/concept.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/compat/cann/dispatched.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/moe/config.hpp>

/// @file
/// The arguments of the operators, with the operators' names. An argument that exists here but
/// cannot be honoured is refused by name when it is given. docs/cann.md states the reasons.
namespace peerbus::cann {

/// The operators' quantMode that corresponds to a codec.
template <token_codec Codec>
struct quant_mode_of;
/// The quantMode of rows that travel as bf16.
template <>
struct quant_mode_of<codec::bf16> {
  /// No quantisation.
  static constexpr std::int64_t value = 0;
};
/// The quantMode of rows that travel as int8.
template <>
struct quant_mode_of<codec::int8_per_token> {
  /// Per-token dynamic quantisation.
  static constexpr std::int64_t value = 2;
};

/// A codec that corresponds to one of the operators' quantModes.
template <class Codec>
concept operator_codec = token_codec<Codec> && requires { quant_mode_of<Codec>::value; };

/// The attributes that the operators require to be equal on all ranks, in each dispatch and in its
/// combine. They are given once, when a `moe_distribute` is made.
struct attributes {
  std::size_t hidden = 0;      ///< H
  std::size_t top_k = 0;       ///< K
  std::size_t max_tokens = 0;  ///< largest number of tokens of a rank; 0: global_bs / ranks
  std::size_t in_flight = 1;   ///< number of dispatches whose results stay valid at once

  std::int64_t ep_world_size = 0;   ///< 0, or the size of the communicator
  std::int64_t ep_rank_id = -1;     ///< -1, or the rank in the communicator
  std::int64_t moe_expert_num = 0;  ///< number of MoE experts of all ranks, without shared experts
  std::string_view group_tp{};      ///< must be empty: there is no tensor-parallel group
  std::int64_t tp_world_size = 0;   ///< 0 or 1
  std::int64_t tp_rank_id = 0;      ///< must be 0
  std::int64_t expert_shard_type = 0;  ///< must be 0: shared experts live on the first ranks
  std::int64_t shared_expert_num = 1;  ///< if no rank holds shared experts: 0 or 1, without effect
  /// Number of ranks that hold shared experts, and no other experts.
  std::int64_t shared_expert_rank_num = 0;
  std::optional<std::int64_t> quant_mode{};  ///< none, or the mode of the codec
  std::int64_t global_bs = 0;                ///< 0, or max_tokens x ranks
  std::string_view comm_alg{};  ///< empty, "fullmesh" or "fullmesh_v1", which all mean the same
  /// Number of experts whose output is zero; ids from moe_expert_num on.
  std::int64_t zero_expert_num = 0;
  /// Number of experts whose output is the token; ids after the zero experts.
  std::int64_t copy_expert_num = 0;
  std::int64_t const_expert_num = 0;  ///< number of constant experts; ids after the copy experts
  /// The use of relays, over transports such as `planes`. With relays, a token crosses once for
  /// each group of near ranks (moe/relay.hpp), and the rows of an expert have another order of
  /// source ranks. Combine then adds the terms of experts that are not sent before the sums of the
  /// groups.
  moe::relay relay = moe::relay::never;
};

/// The arguments of one dispatch. Bs is the number of tokens of this rank, at most max_tokens. The
/// caller may reuse all arrays as soon as the call returns.
struct dispatch_arguments {
  std::span<const bf16> x{};                   ///< [Bs, H]
  std::span<const std::int32_t> expert_ids{};  ///< [Bs, K]
  std::span<const float> scales{};             ///< refused: smooth quantisation
  /// Empty: every token is active. [Bs]: active tokens, which must precede inactive ones. [Bs, K]:
  /// active slots. If K is 1, the mask is read as [Bs, K].
  std::span<const bool> x_active_mask{};
  std::span<const float> expert_scales{};        ///< refused: combine takes them
  std::span<const std::int32_t> elastic_info{};  ///< refused: the group does not shrink
  /// [ranks], or empty. The call adds the microseconds that it waited for each rank.
  std::span<std::int64_t> performance_info{};
  std::int64_t expert_token_nums_type = 1;  ///< 0: prefix sums, 1: counts
  std::optional<deadline> until{};          ///< none: the communicator's default
};

/// The arguments of one combine. The caller may reuse all arrays as soon as the call returns.
template <operator_codec Codec>
struct combine_arguments {
  /// The result of the dispatch. Replaces expand_idx (assist_info_for_combine) and ep_send_counts,
  /// which have a meaning only together.
  dispatch_result<Codec> dispatched;
  /// [A, H]: the outputs of the experts. If empty, the outputs are in `dispatched.expert_out`,
  /// which saves a copy.
  std::span<const bf16> expand_x{};
  std::span<const std::int32_t> expert_ids{};      ///< empty, or equal to the ids of dispatch
  std::span<const float> expert_scales{};          ///< [Bs, K]
  std::span<const std::int32_t> tp_send_counts{};  ///< refused: no tensor-parallel group
  std::span<const bool> x_active_mask{};           ///< empty, or equal to that of dispatch
  std::span<const float> activation_scale{};       ///< refused: the operators reserve it
  std::span<const float> weight_scale{};           ///< refused: the operators reserve it
  std::span<const std::int64_t> group_list{};      ///< refused: the operators reserve it
  std::span<const float> expand_scales{};        ///< refused: expert_scales weigh at the home rank
  std::span<const bf16> shared_expert_x{};       ///< [Bs, H]; only if no rank holds shared experts
  std::span<const std::int32_t> elastic_info{};  ///< refused: the group does not shrink
  std::span<const bf16> ori_x{};                 ///< [Bs, H], for copy and constant experts
  std::span<const bf16> const_expert_alpha_1{};  ///< [const_expert_num]
  std::span<const bf16> const_expert_alpha_2{};  ///< [const_expert_num]
  std::span<const bf16> const_expert_v{};        ///< [const_expert_num, H]
  /// [ranks], or empty. The call adds the microseconds that it waited for each rank.
  std::span<std::int64_t> performance_info{};
  std::int64_t out_dtype = 0;        ///< must be 0: the result is bf16
  std::int64_t comm_quant_mode = 0;  ///< must be 0: outputs travel as bf16
  std::int64_t group_list_type = 0;  ///< must be 0: the operators reserve it
  std::span<bf16> out{};             ///< [Bs, H]: the result (xOut)
  std::optional<deadline> until{};   ///< none: the communicator's default
};

}  // namespace peerbus::cann
