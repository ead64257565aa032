// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/refusal.hpp>

namespace peerbus::moe::detail {

/// What the caller of an operation objects to itself.
inline refusal objection_of_caller(bool refuse) noexcept {
  return {refuse ? refusal_reason::by_caller : refusal_reason::none};
}

/// Throws: `error` invalid_argument unless there is room for every rank's waits, or none is wanted.
inline void require_all_ranks(std::span<const std::int64_t> waited, std::size_t ranks) {
  if (!waited.empty() && waited.size() != ranks)
    throw error{errc::invalid_argument,
                peerbus::detail::concat("waited has ", waited.size(),
                                        " entries, expected none or one per rank, ", ranks)};
}

/// Throws: `error` invalid_argument if output attachments are to go home that were not configured.
inline void require_output_attachment(bool attached, const exchange_config& config) {
  if (attached && config.output_attachment == 0)
    throw error{errc::invalid_argument,
                "attached is true, expected false, as output_attachment is 0 in the configuration"};
}

}  // namespace peerbus::moe::detail
