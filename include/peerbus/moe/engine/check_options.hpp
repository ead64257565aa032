// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/plan/refusal.hpp>

namespace peerbus::moe::detail {

/// Returns the refusal of the caller if `refuse` is true, else no refusal.
inline refusal objection_of_caller(bool refuse) noexcept {
  return {refuse ? refusal_reason::by_caller : refusal_reason::none};
}

/// Checks that `waited` is empty or has an entry for every rank.
/// Throws: `error` invalid_argument.
inline void require_all_ranks(std::span<const std::int64_t> waited, std::size_t ranks) {
  if (!waited.empty() && waited.size() != ranks)
    throw error{errc::invalid_argument,
                peerbus::detail::concat("waited has ", waited.size(),
                                        " entries, expected none or one per rank, ", ranks)};
}

/// Checks that output attachments are configured if `attached` is true.
/// Throws: `error` invalid_argument.
inline void require_output_attachment(bool attached, const exchange_config& config) {
  if (attached && config.output_attachment == 0)
    throw error{errc::invalid_argument,
                "attached is true, expected false, as output_attachment is 0 in the configuration"};
}

}  // namespace peerbus::moe::detail
