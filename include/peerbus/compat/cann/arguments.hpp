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

/// What is given to the operators, under the operators' names. Whatever is present here but cannot
/// be done is refused by name when it is given; docs/cann.md says why.
namespace peerbus::cann {

/// The quantMode that a codec stands for.
template <token_codec Codec>
struct quant_mode_of;
template <>
struct quant_mode_of<codec::bf16> {
  static constexpr std::int64_t value = 0;
};
template <>
struct quant_mode_of<codec::int8_per_token> {
  static constexpr std::int64_t value = 2;
};

/// A codec that one of the operators' quantModes means.
template <class Codec>
concept operator_codec = token_codec<Codec> && requires { quant_mode_of<Codec>::value; };

/// What the operators demand to be the same on all ranks and in each dispatch and its combine. So
/// it is given once, when the pair is made.
struct attributes {
  std::size_t hidden = 0;      ///< H
  std::size_t top_k = 0;       ///< K
  std::size_t max_tokens = 0;  ///< the most tokens of a rank; 0: global_bs / ranks
  std::size_t in_flight = 1;   ///< dispatches whose results are kept at once

  std::int64_t ep_world_size = 0;  ///< 0: that of the communicator, which it must equal
  std::int64_t ep_rank_id = -1;    ///< -1: that of the communicator, which it must equal
  std::int64_t moe_expert_num = 0;
  std::string_view group_tp{};     ///< empty: there is no tensor-parallel group here
  std::int64_t tp_world_size = 0;  ///< 0 or 1
  std::int64_t tp_rank_id = 0;
  std::int64_t expert_shard_type = 0;  ///< 0: shared experts live on the first ranks
  std::int64_t shared_expert_num = 1;  ///< as the Python operators; means nothing without ranks
  std::int64_t shared_expert_rank_num = 0;
  std::optional<std::int64_t> quant_mode{};  ///< none: that of the codec, which it must equal
  std::int64_t global_bs = 0;                ///< 0, or max_tokens x ranks
  std::string_view comm_alg{};               ///< empty, "fullmesh" or "fullmesh_v1": what is done
  std::int64_t zero_expert_num = 0;
  std::int64_t copy_expert_num = 0;
  std::int64_t const_expert_num = 0;
};

/// What one dispatch is given. Bs is the number of tokens of this rank, at most max_tokens; all
/// arrays are free again on return.
struct dispatch_arguments {
  std::span<const bf16> x{};                   ///< [Bs, H]
  std::span<const std::int32_t> expert_ids{};  ///< [Bs, K]
  std::span<const float> scales{};             ///< refused: smooth quantisation
  /// Empty: all. [Bs]: the tokens that take part, which come first. [Bs, K]: the slots that do. For
  /// K = 1 it is the latter.
  std::span<const bool> x_active_mask{};
  std::span<const float> expert_scales{};        ///< refused: combine takes them
  std::span<const std::int32_t> elastic_info{};  ///< refused: the group does not shrink
  /// [ranks]; microseconds that the call waited for each rank are added.
  std::span<std::int64_t> performance_info{};
  std::int64_t expert_token_nums_type = 1;  ///< 0: prefix sums, 1: counts
  std::optional<deadline> until{};          ///< none: the communicator's default, from the call on
};

/// What one combine is given. All arrays are free again on return.
template <operator_codec Codec>
struct combine_arguments {
  /// What `dispatch` returned: in place of expand_idx (assist_info_for_combine) and ep_send_counts,
  /// which mean something only together.
  dispatch_result<Codec> dispatched;
  /// [A, H]: what the experts made of the rows. Empty: they wrote it to `dispatched.expert_out`,
  /// which spares a copy.
  std::span<const bf16> expand_x{};
  std::span<const std::int32_t> expert_ids{};      ///< empty, or as dispatch was given them
  std::span<const float> expert_scales{};          ///< [Bs, K]
  std::span<const std::int32_t> tp_send_counts{};  ///< refused: no tensor-parallel group
  std::span<const bool> x_active_mask{};           ///< empty, or as dispatch was given it
  std::span<const float> activation_scale{};       ///< refused, as there
  std::span<const float> weight_scale{};           ///< refused, as there
  std::span<const std::int64_t> group_list{};      ///< refused, as there
  std::span<const float> expand_scales{};          ///< refused: expert_scales says it
  std::span<const bf16> shared_expert_x{};       ///< [Bs, H], only without ranks of shared experts
  std::span<const std::int32_t> elastic_info{};  ///< refused: the group does not shrink
  std::span<const bf16> ori_x{};                 ///< [Bs, H], for copy and constant experts
  std::span<const bf16> const_expert_alpha_1{};  ///< [const_expert_num]
  std::span<const bf16> const_expert_alpha_2{};  ///< [const_expert_num]
  std::span<const bf16> const_expert_v{};        ///< [const_expert_num, H]
  /// [ranks]; microseconds that the call waited for each rank are added.
  std::span<std::int64_t> performance_info{};
  std::int64_t out_dtype = 0;        ///< 0, as there
  std::int64_t comm_quant_mode = 0;  ///< 0: outputs travel as bf16
  std::int64_t group_list_type = 0;  ///< 0, as there
  std::span<bf16> out{};             ///< [Bs, H]: the result (xOut)
  std::optional<deadline> until{};   ///< none: the communicator's default, from the call on
};

}  // namespace peerbus::cann
