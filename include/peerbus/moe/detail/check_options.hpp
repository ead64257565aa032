// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/call_options.hpp>
#include <peerbus/moe/refusal.hpp>

namespace peerbus::moe::detail {

/// What the caller of an operation objects to itself.
inline refusal objection_of_caller(const call_options& with) noexcept {
  return {with.refuse ? refusal_reason::by_caller : refusal_reason::none};
}

/// Throws: `error` invalid_argument unless there is room for every rank's waits, or none is wanted.
inline void require_all_ranks(const call_options& with, std::size_t ranks) {
  if (!with.waited.empty() && with.waited.size() != ranks)
    throw error{errc::invalid_argument,
                peerbus::detail::concat("waited has ", with.waited.size(),
                                        " entries, expected none or one per rank, ", ranks)};
}

}  // namespace peerbus::moe::detail
