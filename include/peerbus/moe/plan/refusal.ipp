// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/plan/refusal.hpp>

namespace peerbus::moe {

PEERBUS_ERROR_PATH std::string describe(const refusal& why) {
  using peerbus::detail::concat;
  const std::string where = concat({"token ", why.token, ", slot ", why.slot});
  const std::string peer_sent = concat({rank_id{why.slot}, " sent "});
  switch (why.reason) {
    case refusal_reason::none: return "nothing";
    case refusal_reason::null_tokens:
      return concat({"tokens that are null but ", why.given, " values long"});
    case refusal_reason::null_experts:
      return concat({"a routing whose experts are null but ", why.given, " long"});
    case refusal_reason::null_weights:
      return concat({"a routing whose weights are null but ", why.given, " long"});
    case refusal_reason::tokens_not_rows:
      return concat(
          {"tokens with ", why.given, " values, expected a multiple of hidden, ", why.expected});
    case refusal_reason::too_many_tokens:
      return concat({why.given, " tokens, expected at most max_tokens, ", why.expected});
    case refusal_reason::experts_size:
      return concat(
          {"a routing with ", why.given, " expert ids, expected tokens x top_k, ", why.expected});
    case refusal_reason::weights_size:
      return concat(
          {"a routing with ", why.given, " weights, expected tokens x top_k, ", why.expected});
    case refusal_reason::expert_out_of_range:
      return concat(
          {"expert id ", why.given, " at ", where, ", expected -1 or 0 to ", why.expected - 1});
    case refusal_reason::expert_repeated:
      return concat({"expert id ", why.given, " again at ", where,
                     ", expected different experts within a token"});
    case refusal_reason::null_out:
      return concat({"out that is null but ", why.given, " values long"});
    case refusal_reason::out_size:
      return concat({"out with ", why.given, " values, expected tokens x hidden, ", why.expected});
    case refusal_reason::attachment_size:
      return concat({"attachment ", why.slot, " of ", why.given,
                     " bytes, expected tokens x configured, ", why.expected});
    case refusal_reason::null_attachment:
      return concat({"attachment ", why.slot, " that is null but ", why.given, " bytes long"});
    case refusal_reason::terms_by_rank:
      return "combine_terms weights or local rows, expected none, as rank-major rows are summed "
             "unweighted";
    case refusal_reason::term_weights_size:
      return concat({"combine_terms with ", why.given,
                     " weights, expected none or tokens x top_k, ", why.expected});
    case refusal_reason::bias_size:
      return concat({"combine_terms with bias ", why.slot, " of ", why.given,
                     " values, expected none or tokens x hidden, ", why.expected});
    case refusal_reason::local_size:
      return concat({"combine_terms with ", why.given,
                     " local rows, expected none or tokens x top_k, ", why.expected});
    case refusal_reason::local_unweighted:
      return "combine_terms with local rows but no weights, expected both";
    case refusal_reason::by_caller: return "arguments that its caller refuses";
    case refusal_reason::note_size:
      return concat(
          {"a note of ", why.given, " bytes, expected none or note_bytes, ", why.expected});
    case refusal_reason::null_note:
      return concat({"a note that is null but ", why.given, " bytes long"});
    case refusal_reason::bound_size:
      return concat(
          {"a bound of ", why.given, " tokens, expected at most max_tokens, ", why.expected});
    case refusal_reason::bound_differs:
      return concat(
          {"a bound of ", why.given, " tokens, expected that of this rank, ", why.expected});
    case refusal_reason::terms_relayed:
      return "combine_terms weights or local rows, expected none, as ranks on the way apply the "
             "weights of the dispatch unless exchange_config::weights_at_combine is true";
    case refusal_reason::expert_lost:
      return concat({"expert id ", why.given, " at ", where,
                     ", whose rank is gone; expected experts of the ranks in the view"});
    case refusal_reason::rows_kept:
      return concat({"memory with the rows of dispatch ", why.given,
                     ", which exchange::keep still keeps; expected them dropped before"});
    case refusal_reason::local_of_sent:
      return concat({"combine_terms with a local row for ", where,
                     ", which went to an expert; expected null there"});
    case refusal_reason::own_size:
      return concat({"combine_terms with ", why.given,
                     " own outputs, expected none or, without relay, tokens x copies, ",
                     why.expected});
    case refusal_reason::own_elsewhere:
      return concat({"combine_terms with an own output for token ", why.token, ", copy ", why.slot,
                     ", which this rank's experts did not get; expected null there"});
    case refusal_reason::counts_missing:
      return concat({peer_sent, "a signal of counts with those of dispatch ", why.given,
                     ", expected ", why.expected});
    case refusal_reason::rows_for_expert:
      return concat({peer_sent, why.given, " rows for expert ", why.token, ", expected at most ",
                     why.expected, " (max_tokens, or the bound of the dispatch)"});
    case refusal_reason::rows_for_rank:
      return concat({peer_sent, why.given, " rows for rank ", why.token, ", expected at most ",
                     why.expected, " (max_tokens, or the bound of the dispatch)"});
    case refusal_reason::rows_for_experts_of_rank:
      return concat({peer_sent, why.given, " rows for the experts of rank ", why.token,
                     ", expected at most ", why.expected,
                     " (for each token no more than top_k, and than the rank has experts)"});
    case refusal_reason::note_of_peer:
      return concat({peer_sent, "a note of ", why.given, " bytes, expected none or note_bytes, ",
                     why.expected});
    case refusal_reason::origin_rank:
      return concat({peer_sent, "row ", why.token, " as one of rank ", why.given, ", expected ",
                     why.expected});
    case refusal_reason::origin_home:
      return concat({peer_sent, "row ", why.token, " as one of rank ", why.given,
                     ", expected at most ", why.expected - 1});
    case refusal_reason::origin_token:
      return concat({peer_sent, "row ", why.token, " as token ", why.given, ", expected at most ",
                     why.expected - 1, " (max_tokens - 1)"});
    case refusal_reason::origin_slot:
      return concat({peer_sent, "row ", why.token, " as slot ", why.given, ", expected at most ",
                     why.expected - 1, " (the copies of a token - 1)"});
    case refusal_reason::expert_of_row:
      return concat({peer_sent, "row ", why.token, " for local expert ", why.given,
                     ", expected -1 to ", why.expected - 1});
    case refusal_reason::expert_again:
      return concat({peer_sent, "row ", why.token, " twice for local expert ", why.given,
                     ", expected different experts within a token"});
    case refusal_reason::vacant_place:
      if (why.token == vacant) return concat({peer_sent, "rows for a place that no rank has"});
      return concat({peer_sent, "rows for physical expert ", why.token, ", which is vacant"});
  }
  return "an unknown reason";
}

namespace detail {

[[noreturn]] PEERBUS_ERROR_PATH void throw_refusal(std::string_view operation, std::uint64_t number,
                                                   rank_id own_rank, const refusal_of& found) {
  using peerbus::detail::concat;
  const std::string title = concat({operation, " ", number});
  if (found.rank == own_rank)
    throw error{errc::invalid_argument, concat({title, " was given ", describe(found.why)})};
  if (is_of_peer(found.why.reason))
    throw error{errc::refused, concat({title, " did not happen: ", found.rank, " found that ",
                                       describe(found.why)})};
  throw error{errc::refused,
              concat({title, " did not happen: ", found.rank, " was given ", describe(found.why)})};
}

}  // namespace detail

}  // namespace peerbus::moe
