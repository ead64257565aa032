// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include <peerbus/compat/deep_ep/argument.hpp>
#include <peerbus/compat/deep_ep/detail/ids.hpp>
#include <peerbus/compat/deep_ep/detail/normal_routing.hpp>
#include <peerbus/compat/deep_ep/normal.hpp>
#include <peerbus/compat/deep_ep/tensor.hpp>
#include <peerbus/moe/config.hpp>

namespace peerbus::deep_ep::detail {

/// Counts the tokens for each rank and expert into `counted`, which the result keeps alive. Does
/// not communicate.
/// Throws: `error` invalid_argument for bad arguments, and for ids of `num_experts` and more,
/// unless `others` is `skipped`.
inline dispatch_layout layout_of(const const_tensor& topk_idx, std::size_t num_experts,
                                 moe::ids_outside others, std::size_t ranks,
                                 std::shared_ptr<normal_routing> counted) {
  constexpr std::string_view call = "get_dispatch_layout";
  require_form({call, "topk_idx"}, topk_idx, {{dtype::int64, dtype::int32}, {any, any}});
  const argument experts{call, "num_experts"};
  experts.require(num_experts >= 1 && num_experts <= moe::max_experts, "is ", num_experts,
                  ", expected 1 to ", moe::max_experts);
  counted->tokens = topk_idx.size(0);
  counted->top_k = topk_idx.size(1);
  counted->experts = num_experts;
  counted->resize(ranks);
  copy_ids(topk_idx, counted->ids, num_experts, others);
  if (!counted->count_ranks(ranks)) {
    const argument ids{call, "topk_idx"};
    for (std::size_t i = 0; i < counted->ids.size(); ++i) {
      const std::int64_t id = counted->ids[i];
      ids.require(id >= -1 && id < static_cast<std::int64_t>(num_experts), "has ", id,
                  " for token ", i / counted->top_k, ", slot ", i % counted->top_k,
                  ", expected -1 or 0 to ", num_experts - 1);
    }
  }
  counted->count_experts();
  dispatch_layout made;
  made.num_tokens_per_rank = view(counted->per_rank, {ranks});
  made.num_tokens_per_expert = view(counted->per_expert, {num_experts});
  made.is_token_in_rank = {counted->in_rank.get(), dtype::boolean, {counted->tokens, ranks}};
  made.memory = std::move(counted);
  return made;
}

}  // namespace peerbus::deep_ep::detail
