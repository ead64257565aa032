// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::moe {

/// The reasons for a refusal. The numbers never change, because processes exchange them.
enum class refusal_reason : std::uint32_t {
  none = 0,                 ///< the rank does not refuse
  null_tokens = 1,          ///< the tokens are a null pointer with a length
  null_experts = 2,         ///< the routing's experts are a null pointer with a length
  null_weights = 3,         ///< the routing's weights are a null pointer with a length
  tokens_not_rows = 4,      ///< the number of values is no multiple of hidden
  too_many_tokens = 5,      ///< more than max_tokens
  experts_size = 6,         ///< the routing has not tokens x top_k expert ids
  weights_size = 7,         ///< the routing has not tokens x top_k weights
  expert_out_of_range = 8,  ///< an expert id is neither -1 nor below the number of experts
  expert_repeated = 9,      ///< two slots of a token name the same expert
  null_out = 10,            ///< `out` is a null pointer with a length
  out_size = 11,            ///< `out` has not tokens x hidden values
  attachment_size = 12,     ///< an attachment has not tokens x configured bytes
  null_attachment = 13,     ///< an attachment is a null pointer with a length
  terms_by_rank = 14,       ///< weights or local rows in a layout by rank
  term_weights_size = 15,   ///< `combine_terms::weights` has not tokens x top_k values
  bias_size = 16,           ///< a bias has not tokens x hidden values
  local_size = 17,          ///< `combine_terms::local` has not tokens x top_k rows
  local_unweighted = 18,    ///< `combine_terms` has local rows but no weights
  local_of_sent = 19,       ///< a local row for a slot that went to an expert
  by_caller = 20,           ///< `refuse` was set
  note_size = 21,           ///< a note has neither 0 nor note_bytes bytes
  null_note = 22,           ///< a note is a null pointer with a length
  bound_size = 23,          ///< `bound` is more than max_tokens
  bound_differs = 24,       ///< `bound` is not that of another rank
  terms_relayed = 25,       ///< weights or local rows, which the relay does not expect
  expert_lost = 26,         ///< the rank that holds the expert is gone
  // Found by a rank in the numbers that rank `slot` wrote (`exchange_config::distrust_peers`).
  // `token` is the number of an expert, of a rank or of a row.
  counts_missing = 27,            ///< its signal of counts came without counts
  rows_for_expert = 28,           ///< rows for expert `token`
  rows_for_rank = 29,             ///< rows for rank `token`
  rows_for_experts_of_rank = 30,  ///< rows for all experts of rank `token`
  note_of_peer = 31,              ///< bytes of its note
  origin_rank = 32,               ///< the home rank of row `token`, which is not the sender
  origin_token = 33,              ///< the number of the token of row `token`
  origin_slot = 34,               ///< the slot of row `token`
  expert_of_row = 35,             ///< the local expert of a slot of row `token`
  expert_again = 36,              ///< a local expert that row `token` has twice
  vacant_place = 37,              ///< rows for physical expert `token`, which is vacant
  origin_home = 38,               ///< the home rank of row `token`, handed on, of no rank
  rows_kept = 39,                 ///< `exchange::keep` keeps the rows that the memory holds
  own_size = 40,                  ///< `combine_terms::own` has not tokens x copies outputs
  own_elsewhere = 41,             ///< an own output of a copy that is not at this rank
};

/// Returns whether `reason` is about a number that another rank wrote, not about a rank's own
/// input.
constexpr bool is_of_peer(refusal_reason reason) noexcept {
  return reason >= refusal_reason::counts_missing && reason <= refusal_reason::origin_home;
}

/// A refusal of an operation, with its reason. A rank sends it to its peers, so that all ranks
/// report the same reason and none of them does the operation.
struct refusal {
  refusal_reason reason = refusal_reason::none;  ///< `none`: the rank does not refuse
  std::uint32_t token = 0;                       ///< the token concerned, if it is about one
  std::uint32_t slot = 0;                        ///< the slot, attachment or bias concerned
  std::uint32_t relayed_for = 0;  ///< 1 + the rank whose input is bad, if another rank passes it on
  std::int64_t given = 0;         ///< the value that was refused
  /// The value or limit that was expected. In a message of counts without a refusal, the bound of
  /// the dispatch.
  std::int64_t expected = 0;

  /// Returns whether the rank refuses.
  [[nodiscard]] explicit operator bool() const noexcept { return reason != refusal_reason::none; }
};

/// Makes a refusal that concerns no particular token.
constexpr refusal refuse(refusal_reason reason, std::size_t given, std::size_t expected,
                         std::uint32_t slot = 0) noexcept {
  return {
      reason, 0, slot, 0, static_cast<std::int64_t>(given), static_cast<std::int64_t>(expected)};
}

/// Makes a refusal of a number that rank `source` wrote. `number` is the number of an expert, a
/// rank or a row.
constexpr refusal refuse_peer(refusal_reason reason, rank_id source, std::size_t number,
                              std::size_t given, std::size_t expected) noexcept {
  refusal found = refuse(reason, given, expected, static_cast<std::uint32_t>(source.index()));
  found.token = static_cast<std::uint32_t>(number);
  return found;
}

/// The record that a rank sends to its peers beside the signal of an operation. It states whether
/// the rank refuses the operation, and describes the data that the rank adds. The epoch of the
/// operation is part of the record, so that a record of an earlier operation is not mistaken for
/// one of this operation. The value of the signal does not suffice, because the sender may be in
/// the next operation before a slow peer reads the signal.
struct verdict {
  std::uint64_t epoch = 0;    ///< epoch of the operation
  refusal why;                ///< empty if the rank takes part
  std::uint64_t brought = 0;  ///< bytes of its note or of an output attachment, or a bit
                              ///< for each rank of its group that attached (relay)
};
static_assert(std::is_trivially_copyable_v<verdict> && sizeof(verdict) == 48);

/// Describes a refusal for error messages: the given and the expected values.
std::string describe(const refusal& why);

namespace detail {

/// A refusal, and the rank that refuses.
struct refusal_of {
  rank_id rank;
  refusal why;
};

/// Throws the error of operation `number` that `found` refuses: invalid_argument on the rank whose
/// own input is bad, `refused` on the others.
[[noreturn]] void throw_refusal(std::string_view operation, std::uint64_t number, rank_id own_rank,
                                const refusal_of& found);

}  // namespace detail

}  // namespace peerbus::moe

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/plan/refusal.ipp>  // IWYU pragma: keep
#endif
