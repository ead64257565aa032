// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include <peerbus/core/compiled.hpp>

namespace peerbus::moe {

/// The error in the input of a rank. The numbers never change, because processes exchange them.
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

/// The reason why a rank refuses an operation. A rank sends it to its peers, so that all ranks
/// report the same reason and none of them does the operation.
struct refusal {
  refusal_reason reason = refusal_reason::none;
  std::uint32_t token = 0;
  std::uint32_t slot = 0;
  std::uint32_t reserved = 0;
  std::int64_t given = 0;
  std::int64_t expected = 0;

  [[nodiscard]] explicit operator bool() const noexcept { return reason != refusal_reason::none; }
};

/// Makes a refusal that concerns no particular token.
constexpr refusal refuse(refusal_reason reason, std::size_t given, std::size_t expected,
                         std::uint32_t slot = 0) noexcept {
  return {
      reason, 0, slot, 0, static_cast<std::int64_t>(given), static_cast<std::int64_t>(expected)};
}

/// The record that a rank sends to its peers beside the signal of an operation. It states whether
/// the rank refuses the operation and how many bytes it brings. The epoch of the operation is part
/// of the record, so that a record of an earlier operation is not mistaken for one of this
/// operation. The value of the signal does not suffice, because the sender may be in the next
/// operation before a slow peer reads the signal.
struct verdict {
  std::uint64_t epoch = 0;
  refusal why;
  std::uint64_t brought = 0;  ///< bytes of the rank's note, or of one output attachment
};
static_assert(std::is_trivially_copyable_v<verdict> && sizeof(verdict) == 48);

/// Describes a refusal for error messages: the given and the expected values.
std::string describe(const refusal& why);

}  // namespace peerbus::moe

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/impl/refusal.hpp>  // IWYU pragma: keep
#endif
