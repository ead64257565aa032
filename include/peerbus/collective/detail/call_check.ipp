// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/collective/detail/call_check.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::collective::detail {

PEERBUS_INLINE void call_check::refuse(errc code, std::size_t bytes) noexcept {
  header_.refusal = code;
  header_.count = bytes;
}

PEERBUS_INLINE void call_check::write(std::uint64_t round) noexcept {
  std::memcpy(pages_.page(round), &header_, sizeof header_);
  pages_.notice_of_own(round).digest = digest_ = header_.digest();
  pages_.notice_of_own(round).offset = header_.offset;
}

PEERBUS_INLINE call_header call_check::header_of(std::uint64_t round, rank_id rank) const noexcept {
  if (rank == pages_.group().rank()) return header_;
  call_header theirs;
  std::memcpy(&theirs, pages_.header(round, rank), sizeof theirs);
  return theirs;
}

PEERBUS_INLINE void call_check::throw_if_refused(std::uint64_t round) const {
  for (const rank_id rank : pages_.group().ranks())
    if (const call_header theirs = header_of(round, rank); theirs.refusal != errc::ok)
      throw_refused(round, rank, theirs);
}

PEERBUS_INLINE void call_check::compare(std::uint64_t round) const {
  const auto agrees = [&](rank_id peer) noexcept { return is_same(round, peer); };
  if (!std::ranges::all_of(pages_.group().peers(), agrees)) find_difference(round);
}

/// Describes the algorithm of a call, in which calls with otherwise equal descriptions may differ.
PEERBUS_ERROR_PATH std::string words_for_way(const call_header& call) {
  return call.window == call_header::in_two_shots ? " in two shots" : " in one shot";
}

PEERBUS_ERROR_PATH void call_check::find_difference(std::uint64_t round) const {
  throw_if_refused(round);
  const call_header first = header_of(round, rank_id{0});
  for (const rank_id rank : pages_.group().ranks())
    if (const call_header theirs = header_of(round, rank); !theirs.agrees_with(first)) {
      std::string text = describe(first);
      std::string their_text = describe(theirs);
      if (text == their_text) {
        text += words_for_way(first);
        their_text += words_for_way(theirs);
      }
      throw agreed_error{
          error{errc::mismatch,
                peerbus::detail::concat({title(), " did not happen: ", rank_id{0}, " called ", text,
                                         ", ", rank, " called ", their_text})}};
    }
}

PEERBUS_ERROR_PATH void call_check::throw_refused(std::uint64_t round, rank_id refuser,
                                                  const call_header& theirs) const {
  const std::byte* const page = pages_.payload(round, refuser, 0);
  const std::string_view text{reinterpret_cast<const char*>(page), theirs.count};
  if (theirs.refusal == errc::mismatch)
    throw agreed_error{
        error{errc::mismatch, peerbus::detail::concat(title(), " did not happen: ", text)}};
  throw agreed_error{error{errc::refused, peerbus::detail::concat(title(), " did not happen: ",
                                                                  refuser, " was given ", text)}};
}

PEERBUS_ERROR_PATH std::string call_check::title() const {
  return peerbus::detail::concat(header_.operation.view(), " (collective call ", number_, ")");
}

PEERBUS_ERROR_PATH void call_check::fail(errc code, std::uint64_t round) const {
  std::vector<rank_id> awaited(pages_.group().peers().begin(), pages_.group().peers().end());
  std::erase_if(awaited, [&](rank_id peer) { return pages_.latest(peer) >= round; });
  members().fail_wait(wait_, code, awaited.empty() ? std::nullopt : std::optional{awaited[0]});
  std::string text = title() + " failed in the middle";
  if (!awaited.empty())
    text += peerbus::detail::concat(": waited ", peerbus::detail::describe_elapsed(wait_), " for ");
  pages_.group().fail_waiting(code, std::move(text), awaited, [&](rank_id peer) {
    return peerbus::detail::concat("round ", pages_.latest(peer), ", expected ", round);
  });
}

PEERBUS_ERROR_PATH void call_check::fail(errc code, std::uint64_t round, rank_id peer,
                                         std::uint64_t step) const {
  members().fail_wait(wait_, code, peer);
  pages_.group().fail_waiting(
      code,
      peerbus::detail::concat(title(), " failed in the middle: waited ",
                              peerbus::detail::describe_elapsed(wait_), " for "),
      {&peer, 1},
      [&](rank_id) { return peerbus::detail::concat("step ", step, " of round ", round); });
}

}  // namespace peerbus::collective::detail
