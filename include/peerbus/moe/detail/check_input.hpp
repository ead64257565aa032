// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <peerbus/core/bf16.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/detail/batch_input.hpp>
#include <peerbus/moe/refusal.hpp>
#include <peerbus/moe/routing.hpp>

namespace peerbus::moe::detail {

/// Whether the sizes of tokens and routing fit together. Returns: the first thing wrong.
inline refusal check_sizes(const exchange_config& config, std::span<const bf16> tokens,
                           const routing& route) noexcept {
  if (tokens.data() == nullptr && !tokens.empty())
    return refuse(refusal_reason::null_tokens, tokens.size(), 0);
  if (tokens.size() % config.hidden != 0)
    return refuse(refusal_reason::tokens_not_rows, tokens.size(), config.hidden);
  const std::size_t count = tokens.size() / config.hidden;
  if (count > config.max_tokens)
    return refuse(refusal_reason::too_many_tokens, count, config.max_tokens);
  const std::size_t slots = count * config.top_k;
  if (route.size() != slots) return refuse(refusal_reason::experts_size, route.size(), slots);
  if (route.null()) return refuse(refusal_reason::null_experts, route.size(), 0);
  if (route.weights().size() != slots)
    return refuse(refusal_reason::weights_size, route.weights().size(), slots);
  if (route.weights().data() == nullptr && slots != 0)
    return refuse(refusal_reason::null_weights, slots, 0);
  return {};
}

/// Whether the attachments are as configured, for tokens that `check_sizes` accepted.
inline refusal check_attachments(const exchange_config& config, const batch_input& input) noexcept {
  const std::size_t tokens = input.tokens.size() / config.hidden;
  for (std::size_t a = 0; a < max_attachments; ++a) {
    const auto given = input.attached[a];
    const std::size_t expected = tokens * config.attachments[a];
    const auto at = static_cast<std::uint32_t>(a);
    if (given.size() != expected)
      return refuse(refusal_reason::attachment_size, given.size(), expected, at);
    if (given.data() == nullptr && !given.empty())
      return refuse(refusal_reason::null_attachment, given.size(), expected, at);
  }
  return {};
}

}  // namespace peerbus::moe::detail
