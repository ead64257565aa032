// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <peerbus/compat/cann/arguments.hpp>
#include <peerbus/compat/cann/deployment.hpp>
#include <peerbus/compat/cann/slots.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/placed.hpp>
#include <peerbus/kernel/kernel_set.hpp>
#include <peerbus/moe/combine_terms.hpp>

namespace peerbus::cann::detail {

/// The terms that a combine adds at the home rank besides the rows of remote experts. The
/// constructor allocates all memory. The memory for rows of constant experts is only touched if
/// tokens use these experts.
class home_terms {
 public:
  home_terms(const attributes& attributes, const deployment& where, std::size_t max_tokens)
      : hidden_{attributes.hidden},
        weights_(where.shared() == 0 ? 0 : max_tokens * where.slots(), 1.0F),
        local_(attributes.copy_expert_num == 0 && attributes.const_expert_num == 0
                   ? 0
                   : max_tokens * where.slots()) {
    const std::size_t most =
        std::min(attributes.top_k, static_cast<std::size_t>(attributes.const_expert_num)) *
        max_tokens;
    constants_ = std::make_unique_for_overwrite<std::byte[]>(most * hidden_ * sizeof(bf16));
  }

  /// Returns the terms of a combine whose arguments have been checked. They are valid until the
  /// next call.
  template <operator_codec Codec>
  [[nodiscard]] moe::combine_terms of(const combine_arguments<Codec>& given,
                                      const slot_table& slots, const deployment& experts) noexcept {
    moe::combine_terms terms;
    terms.bias[0] = given.shared_expert_x;
    terms.weights = weights(given.expert_scales, slots, experts);
    if (local_.empty()) return terms;
    terms.local = std::span{local_}.first(slots.tokens() * experts.slots());
    std::fill(local_.begin(), local_.end(), nullptr);
    auto* constant = peerbus::detail::placed<bf16>(constants_.get());
    for (std::size_t t = 0; t < slots.tokens(); ++t)
      for (std::size_t k = 0; k < experts.top_k(); ++k) {
        const std::int32_t id = slots.expert(t, k);
        if (id == slot_table::inactive) continue;
        const expert_kind kind = experts.kind(id);
        const bf16* const x = given.ori_x.data() + t * hidden_;
        if (kind == expert_kind::copy) local_[t * experts.slots() + k] = x;
        if (kind != expert_kind::constant) continue;
        const std::size_t c = experts.constant(id);
        const bf16* const rows[] = {x, given.const_expert_v.data() + c * hidden_};
        const float factors[] = {static_cast<float>(given.const_expert_alpha_1[c]),
                                 static_cast<float>(given.const_expert_alpha_2[c])};
        kernel::best().weighted_sum(rows, factors, 2, hidden_, constant);
        local_[t * experts.slots() + k] = constant;
        constant += hidden_;
      }
    return terms;
  }

 private:
  /// Returns the weights, [tokens, slots]: the scales, and 1 for shared experts.
  [[nodiscard]] std::span<const float> weights(std::span<const float> scales,
                                               const slot_table& slots,
                                               const deployment& experts) noexcept {
    if (weights_.empty()) return scales;
    const std::size_t k = experts.top_k();
    for (std::size_t t = 0; t < slots.tokens(); ++t)
      std::copy_n(scales.data() + t * k, k, weights_.data() + t * experts.slots());
    return std::span{weights_}.first(slots.tokens() * experts.slots());
  }

  std::size_t hidden_;
  std::vector<float> weights_;
  std::vector<const bf16*> local_;
  std::unique_ptr<std::byte[]> constants_;
};

}  // namespace peerbus::cann::detail
