// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include <peerbus/core/compiled.hpp>

namespace peerbus::moe {

/// What was wrong with one rank's input. The numbers cross process boundaries.
enum class refusal_reason : std::uint32_t {
  none = 0,
  null_tokens = 1,
  null_experts = 2,
  null_weights = 3,
  tokens_not_rows = 4,
  too_many_tokens = 5,
  experts_size = 6,
  weights_size = 7,
  expert_out_of_range = 8,
  expert_repeated = 9,
  null_out = 10,
  out_size = 11,
  attachment_size = 12,
  null_attachment = 13,
  terms_by_rank = 14,
  term_weights_size = 15,
  bias_size = 16,
  local_size = 17,
  local_unweighted = 18,
  local_of_sent = 19,
  by_caller = 20,
  note_size = 21,
  null_note = 22,
};

/// Why a rank refuses an operation, in a form that it can send to its peers, so that all of them
/// report the same and know that the operation did not happen.
struct refusal {
  refusal_reason reason = refusal_reason::none;
  std::uint32_t token = 0;
  std::uint32_t slot = 0;
  std::uint32_t reserved = 0;
  std::int64_t given = 0;
  std::int64_t expected = 0;

  [[nodiscard]] explicit operator bool() const noexcept { return reason != refusal_reason::none; }
};

constexpr refusal refuse(refusal_reason reason, std::size_t given, std::size_t expected,
                         std::uint32_t slot = 0) noexcept {
  return {
      reason, 0, slot, 0, static_cast<std::int64_t>(given), static_cast<std::int64_t>(expected)};
}

/// What a rank sends of an operation beside its signal: whether it refuses, what it brings, and of
/// which epoch that is said, so that a record left from an earlier operation is not mistaken for
/// this one's. (The signal cannot say it: its raiser may be in the next operation before a slow
/// peer looks.)
struct verdict {
  std::uint64_t epoch = 0;
  refusal why;
  std::uint64_t brought = 0;  ///< bytes of the rank's note, or of one output attachment
};
static_assert(std::is_trivially_copyable_v<verdict> && sizeof(verdict) == 48);

/// What was given and what was expected, for people.
std::string describe(const refusal& r);

}  // namespace peerbus::moe

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/impl/refusal.hpp>  // IWYU pragma: keep
#endif
