// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include <peerbus/core/text.hpp>

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

/// What a rank sends of an operation beside its signal: whether it refuses, and of which epoch that
/// is said, so that a record left from an earlier operation is not mistaken for this one's. (The
/// signal cannot say it: its raiser may be in the next operation before a slow peer looks.)
struct verdict {
  std::uint64_t epoch = 0;
  refusal why;
};
static_assert(std::is_trivially_copyable_v<verdict> && sizeof(verdict) == 40);

/// What was given and what was expected, for people.
inline std::string describe(const refusal& r) {
  using peerbus::detail::concat;
  const std::string where = concat("token ", r.token, ", slot ", r.slot);
  switch (r.reason) {
    case refusal_reason::none: return "nothing";
    case refusal_reason::null_tokens: return concat("tokens is null but ", r.given, " values long");
    case refusal_reason::null_experts:
      return concat("the routing's experts are null but ", r.given, " long");
    case refusal_reason::null_weights:
      return concat("the routing's weights are null but ", r.given, " long");
    case refusal_reason::tokens_not_rows:
      return concat("tokens has ", r.given, " values, expected a multiple of hidden, ", r.expected);
    case refusal_reason::too_many_tokens:
      return concat(r.given, " tokens, expected at most max_tokens, ", r.expected);
    case refusal_reason::experts_size:
      return concat("the routing has ", r.given, " expert ids, expected tokens x top_k, ",
                    r.expected);
    case refusal_reason::weights_size:
      return concat("the routing has ", r.given, " weights, expected tokens x top_k, ", r.expected);
    case refusal_reason::expert_out_of_range:
      return concat("expert id ", r.given, " at ", where, ", expected -1 or 0 to ", r.expected - 1);
    case refusal_reason::expert_repeated:
      return concat("expert id ", r.given, " again at ", where,
                    ", expected different experts within a token");
    case refusal_reason::null_out: return concat("out is null but ", r.given, " values long");
    case refusal_reason::out_size:
      return concat("out has ", r.given, " values, expected tokens x hidden, ", r.expected);
    case refusal_reason::attachment_size:
      return concat("attachment ", r.slot, " has ", r.given,
                    " bytes, expected tokens x configured, ", r.expected);
    case refusal_reason::null_attachment:
      return concat("attachment ", r.slot, " is null but ", r.given, " bytes long");
    case refusal_reason::terms_by_rank:
      return "combine_terms weights or local rows, expected none, as rank-major rows are summed "
             "unweighted";
    case refusal_reason::term_weights_size:
      return concat("combine_terms has ", r.given, " weights, expected none or tokens x top_k, ",
                    r.expected);
    case refusal_reason::bias_size:
      return concat("combine_terms has bias ", r.slot, " of ", r.given,
                    " values, expected none or tokens x hidden, ", r.expected);
    case refusal_reason::local_size:
      return concat("combine_terms has ", r.given, " local rows, expected none or tokens x top_k, ",
                    r.expected);
    case refusal_reason::local_unweighted:
      return "combine_terms has local rows but no weights, expected both";
    case refusal_reason::by_caller: return "arguments that its caller refuses";
    case refusal_reason::local_of_sent:
      return concat("combine_terms has a local row for ", where,
                    ", which went to an expert; expected null there");
  }
  return "an unknown reason";
}

}  // namespace peerbus::moe
