// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/compat/cann/arguments.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/config.hpp>

namespace peerbus::cann::detail {

using peerbus::detail::concat;

/// Returns an error about an argument. `parts` state the argument, the given and the expected
/// value.
template <class... Parts>
error wrong(errc code, const Parts&... parts) {
  return error{code, concat("moe_distribute: ", parts...)};
}

/// Returns the largest number of tokens of a rank, from max_tokens or global_bs; 0 if neither is
/// given.
constexpr std::size_t max_tokens_of(const attributes& attributes, std::size_t ranks) noexcept {
  return attributes.max_tokens != 0 ? attributes.max_tokens
                                    : static_cast<std::size_t>(attributes.global_bs) / ranks;
}

/// Returns an error that describes why `ranks` ranks cannot hold these experts, or nothing.
inline std::optional<error> objection_to_experts(const attributes& attributes, std::size_t ranks) {
  const auto invalid = [](const auto&... parts) { return wrong(errc::invalid_argument, parts...); };
  const auto world = static_cast<std::int64_t>(ranks);
  if (attributes.shared_expert_rank_num < 0 || attributes.shared_expert_rank_num >= world)
    return invalid("shared_expert_rank_num is ", attributes.shared_expert_rank_num,
                   ", expected 0 to ", world - 1, ", which leaves one of ", world,
                   " ranks for MoE experts");
  if (attributes.shared_expert_rank_num == 0 && attributes.shared_expert_num != 0 &&
      attributes.shared_expert_num != 1)
    return invalid("shared_expert_num is ", attributes.shared_expert_num,
                   ", expected 0 or 1, as shared_expert_rank_num is 0");
  if (attributes.shared_expert_rank_num != 0 &&
      (attributes.shared_expert_num < 1 ||
       attributes.shared_expert_rank_num % attributes.shared_expert_num != 0))
    return invalid("shared_expert_num is ", attributes.shared_expert_num,
                   ", expected a divisor of shared_expert_rank_num, ",
                   attributes.shared_expert_rank_num);
  const std::int64_t moe_ranks = world - attributes.shared_expert_rank_num;
  if (attributes.moe_expert_num < 1 || attributes.moe_expert_num % moe_ranks != 0)
    return invalid("moe_expert_num is ", attributes.moe_expert_num,
                   ", expected a multiple of the ranks without shared experts, ", moe_ranks);

  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  std::int64_t all = attributes.moe_expert_num;
  for (const std::int64_t number :
       {attributes.zero_expert_num, attributes.copy_expert_num, attributes.const_expert_num}) {
    if (number < 0 || number >= most || all >= most - number)
      return invalid("moe_expert_num, zero_expert_num, copy_expert_num and const_expert_num are ",
                     attributes.moe_expert_num, ", ", attributes.zero_expert_num, ", ",
                     attributes.copy_expert_num, " and ", attributes.const_expert_num,
                     ", expected none below 0 and less than ", most, " together");
    all += number;
  }
  const auto shared = static_cast<std::size_t>(
      attributes.shared_expert_rank_num == 0 ? 0 : attributes.shared_expert_num);
  if (shared >= moe::max_top_k || attributes.top_k == 0 ||
      attributes.top_k > moe::max_top_k - shared ||
      static_cast<std::int64_t>(attributes.top_k) > all)
    return invalid("top_k is ", attributes.top_k, ", expected at least 1, at most the ", all,
                   " experts that tokens choose from, and together with ", shared,
                   " shared experts at most ", moe::max_top_k);
  return std::nullopt;
}

/// Returns an error that describes why the operators cannot work with these attributes on this
/// rank, or nothing.
template <operator_codec Codec>
std::optional<error> objection_to(const attributes& attributes, std::size_t ranks, rank_id rank) {
  const auto invalid = [](const auto&... parts) { return wrong(errc::invalid_argument, parts...); };
  const auto unsupported = [](const auto&... parts) { return wrong(errc::unsupported, parts...); };
  const auto world = static_cast<std::int64_t>(ranks);
  const auto here = static_cast<std::int64_t>(rank.index());
  if (attributes.ep_world_size != 0 && attributes.ep_world_size != world)
    return invalid("ep_world_size is ", attributes.ep_world_size, ", expected the communicator's ",
                   world);
  if (attributes.ep_rank_id != -1 && attributes.ep_rank_id != here)
    return invalid("ep_rank_id is ", attributes.ep_rank_id, ", expected the communicator's ", here);
  if (!attributes.group_tp.empty())
    return unsupported("group_tp is '", attributes.group_tp,
                       "', expected none: there is no tensor-parallel group");
  if (attributes.tp_world_size != 0 && attributes.tp_world_size != 1)
    return unsupported("tp_world_size is ", attributes.tp_world_size,
                       ", expected 0 or 1: there is no tensor-parallel group");
  if (attributes.tp_rank_id != 0)
    return unsupported("tp_rank_id is ", attributes.tp_rank_id,
                       ", expected 0: there is no tensor-parallel group");
  if (attributes.expert_shard_type != 0)
    return unsupported("expert_shard_type is ", attributes.expert_shard_type,
                       ", expected 0: shared experts live on the first ranks");
  if (attributes.quant_mode && *attributes.quant_mode != quant_mode_of<Codec>::value)
    return unsupported("quant_mode is ", *attributes.quant_mode, ", expected ",
                       quant_mode_of<Codec>::value, ", which is what codec ", Codec::name,
                       " does; 0 is codec bf16, 2 codec int8_per_token, there are no others");
  if (!attributes.comm_alg.empty() && attributes.comm_alg != "fullmesh" &&
      attributes.comm_alg != "fullmesh_v1")
    return unsupported("comm_alg is '", attributes.comm_alg,
                       "', expected none, 'fullmesh' or 'fullmesh_v1': rows go straight to the "
                       "ranks of their experts");
  if (auto found = objection_to_experts(attributes, ranks)) return found;
  if (attributes.global_bs < 0 || attributes.global_bs % world != 0)
    return invalid("global_bs is ", attributes.global_bs,
                   ", expected 0 or a multiple of the ranks, ", world);
  const std::int64_t each = attributes.global_bs / world;
  if (attributes.max_tokens == 0 && each == 0)
    return invalid("max_tokens and global_bs are 0, expected one of them, for the memory to take");
  if (attributes.max_tokens != 0 && each != 0 &&
      static_cast<std::int64_t>(attributes.max_tokens) != each)
    return invalid("max_tokens is ", attributes.max_tokens, ", expected global_bs / ranks, ", each);
  return std::nullopt;
}

/// Returns the attributes that must be equal on all ranks, without the ones that the exchange
/// compares.
inline std::vector<declared> declared_by(const attributes& attributes, std::size_t ranks) {
  const auto number = [](std::int64_t value) { return static_cast<std::uint64_t>(value); };
  return {{"top_k", attributes.top_k},
          {"max_tokens", max_tokens_of(attributes, ranks)},
          {"moe_expert_num", number(attributes.moe_expert_num)},
          {"shared_expert_num", number(attributes.shared_expert_num)},
          {"shared_expert_rank_num", number(attributes.shared_expert_rank_num)},
          {"zero_expert_num", number(attributes.zero_expert_num)},
          {"copy_expert_num", number(attributes.copy_expert_num)},
          {"const_expert_num", number(attributes.const_expert_num)}};
}

}  // namespace peerbus::cann::detail
