// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <peerbus/moe/call_options.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/plan/refusal.hpp>
#include <peerbus/moe/routing.hpp>

namespace peerbus::moe::detail {

/// The values of the tokens of a batch, without their type.
struct token_values {
  const void* data = nullptr;
  std::size_t size = 0;

  token_values() = default;
  template <class Tokens>
    requires requires(const Tokens& tokens) { std::span{tokens}; }
  explicit(false) token_values(const Tokens& tokens) noexcept
      : data{std::span{tokens}.data()}, size{std::span{tokens}.size()} {}
};

/// Checks that the sizes of tokens and routing fit together.
/// Returns: the first error, if any.
inline refusal check_sizes(const exchange_config& config, const token_values& tokens,
                           const routing& route) noexcept {
  if (tokens.data == nullptr && tokens.size != 0)
    return refuse(refusal_reason::null_tokens, tokens.size, 0);
  if (tokens.size % config.hidden != 0)
    return refuse(refusal_reason::tokens_not_rows, tokens.size, config.hidden);
  const std::size_t count = tokens.size / config.hidden;
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

/// Checks that the attachments have the configured sizes. `tokens` is the number of tokens, which
/// `check_sizes` has accepted.
/// Returns: the first error, if any.
inline refusal check_attachments(const exchange_config& config, std::size_t tokens,
                                 const attachments& attached) noexcept {
  for (std::size_t a = 0; a < max_attachments; ++a) {
    const auto given = attached[a];
    const std::size_t expected = tokens * config.attachments[a];
    const auto number = static_cast<std::uint32_t>(a);
    if (given.size() != expected)
      return refuse(refusal_reason::attachment_size, given.size(), expected, number);
    if (given.data() == nullptr && !given.empty())
      return refuse(refusal_reason::null_attachment, given.size(), expected, number);
  }
  return {};
}

/// Checks that a note is empty or has the configured size.
/// Returns: the first error, if any.
inline refusal check_note(const exchange_config& config, std::span<const std::byte> note) noexcept {
  if (!note.empty() && note.size() != config.note_bytes)
    return refuse(refusal_reason::note_size, note.size(), config.note_bytes);
  if (note.data() == nullptr && !note.empty())
    return refuse(refusal_reason::null_note, note.size(), 0);
  return {};
}

}  // namespace peerbus::moe::detail
