// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include <peerbus/core/bf16.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/combine_terms.hpp>
#include <peerbus/moe/path/sum_copies.hpp>
#include <peerbus/moe/plan/refusal.hpp>
#include <peerbus/moe/plan/send_plan.hpp>

namespace peerbus::moe::detail {

/// Checks that `out` has `expected` values and is not a null pointer with a length.
/// Returns: the first error, if any.
inline refusal check_out(std::size_t expected, std::span<const bf16> out) noexcept {
  if (out.size() != expected) return refuse(refusal_reason::out_size, out.size(), expected);
  if (out.data() == nullptr && expected != 0)
    return refuse(refusal_reason::null_out, expected, expected);
  return {};
}

/// The `combine_terms` that an exchange accepts besides biases.
struct terms_allowed {
  bool by_rank;          ///< true: no terms are accepted, because rows are summed by rank
  bool relayed = false;  ///< true: no terms are accepted, because ranks that relay apply weights
  std::optional<rank_id> own_rank{};  ///< the rank whose outputs may lie elsewhere; empty: none
};

/// Checks that `own` has an output only where a copy went to an expert of `own_rank`. Without
/// `own_rank`, there must be none.
/// Returns: the first error, if any.
inline refusal check_own(const send_plan& leaving, std::span<const bf16* const> own,
                         std::optional<rank_id> own_rank) noexcept {
  const std::size_t copies = leaving.geometry().copies_per_token;
  const std::size_t expected = own_rank ? leaving.tokens() * copies : 0;
  if (own.empty()) return {};
  if (own.size() != expected) return refuse(refusal_reason::own_size, own.size(), expected);
  for (std::size_t copy = 0; copy < own.size(); ++copy)
    if (own[copy] != nullptr && leaving.place_of(copy).rank != own_rank->index())
      return {refusal_reason::own_elsewhere, static_cast<std::uint32_t>(copy / copies),
              static_cast<std::uint32_t>(copy % copies)};
  return {};
}

/// Checks that the `terms` of a combine fit the batch that `leaving` describes.
/// Returns: the first error, if any.
inline refusal check_terms(const send_plan& leaving, std::size_t hidden, const combine_terms& terms,
                           const terms_allowed& allowed) noexcept {
  for (std::size_t b = 0; b < terms.bias.size(); ++b)
    if (const std::size_t given = terms.bias[b].size();
        !terms.bias[b].empty() && given != leaving.tokens() * hidden)
      return refuse(refusal_reason::bias_size, given, leaving.tokens() * hidden,
                    static_cast<std::uint32_t>(b));
  if (const refusal found = check_own(leaving, terms.own, allowed.own_rank)) return found;
  if (terms.weights.empty() && terms.local.empty()) return {};
  const std::size_t top_k = leaving.top_k();
  const std::size_t slots = leaving.tokens() * top_k;
  if (allowed.by_rank) return refuse(refusal_reason::terms_by_rank, 0, 0);
  if (allowed.relayed) return refuse(refusal_reason::terms_relayed, 0, 0);
  if (terms.weights.empty() && slots != 0) return refuse(refusal_reason::local_unweighted, 0, 0);
  if (terms.weights.size() != slots)
    return refuse(refusal_reason::term_weights_size, terms.weights.size(), slots);
  if (terms.local.empty()) return {};
  if (terms.local.size() != slots)
    return refuse(refusal_reason::local_size, terms.local.size(), slots);
  for (std::size_t t = 0; t < leaving.tokens(); ++t)
    for (std::size_t k = 0; k < top_k; ++k)
      if (leaving.names_expert(t, k) && terms.local[t * top_k + k] != nullptr)
        return {refusal_reason::local_of_sent, static_cast<std::uint32_t>(t),
                static_cast<std::uint32_t>(k)};
  return {};
}

/// Checks that the arguments of a combine fit the batch that `leaving` describes.
/// Returns: the first error, if any.
inline refusal check_sum(const send_plan& leaving, std::size_t hidden, const combine_sum& wanted,
                         const terms_allowed& allowed) noexcept {
  if (const refusal found = check_out(leaving.tokens() * hidden, wanted.out)) return found;
  return check_terms(leaving, hidden, wanted.terms, allowed);
}

}  // namespace peerbus::moe::detail
