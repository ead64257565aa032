// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/collective/detail/call.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/rank_group.hpp>

namespace peerbus::collective::detail {

PEERBUS_INLINE call::call(team& on, const call_header& header, const operands& given,
                          const call_options& options, std::string_view objection)
    : on_{on},
      road_{*on.road_},
      until_{options.until.value_or(road_.group().default_deadline())},
      first_round_{on.round_ + 1},
      header_{header},
      input_{given.input.data()},
      input_in_{given.input_in} {
  header_.offset = input_in_.offset;
  road_.group().require_healthy(header.operation.view());
  ++on_.calls_;
  if (!objection.empty()) refuse(objection);
}

PEERBUS_INLINE void call::publish(reach to_peer) {
  const std::uint64_t round = ++on_.round_;
  const bool is_first = round == first_round_;
  if (is_first) std::memcpy(road_.page(round), &header_, sizeof header_);
  if (const errc code = road_.publish(round, is_first, to_peer); code != errc::ok)
    fail_waiting(code);
}

PEERBUS_INLINE void call::await() {
  await_peers();
  if (on_.round_ != first_round_) return;
  compare();
  if (is_in_window()) find_operands();
}

PEERBUS_INLINE void call::find_operands() noexcept {
  for (const rank_id rank : road_.group().ranks())
    road_.operands()[rank.index()] =
        input_in_.part_of(input_in_.window, rank) + header_of(rank).offset;
}

PEERBUS_INLINE void call::await_peers() {
  for (const rank_id peer : peers())
    if (const errc code = road_.await(on_.round_, peer, until_); code != errc::ok)
      fail_waiting(code);
}

PEERBUS_INLINE call_header call::header_of(rank_id rank) const noexcept {
  if (rank == self()) return header_;
  call_header theirs;
  std::memcpy(&theirs, road_.header(on_.round_, rank), sizeof theirs);
  return theirs;
}

PEERBUS_INLINE void call::compare() {
  for (const rank_id rank : road_.group().ranks())
    if (const call_header theirs = header_of(rank); theirs.refusal != errc::ok)
      throw_refused(rank, theirs);
  const call_header first = header_of(rank_id{0});
  for (const rank_id rank : road_.group().ranks())
    if (const call_header theirs = header_of(rank); !theirs.agrees_with(first))
      throw_mismatch(rank, first, theirs);
}

PEERBUS_ERROR_PATH void call::refuse(std::string_view objection) {
  // The peers get as much of the text as fits into a slice.
  const std::string_view told = objection.substr(0, slice_bytes(1));
  header_.refusal = errc::invalid_argument;
  header_.count = told.size();
  std::copy(told.begin(), told.end(), reinterpret_cast<char*>(page()));
  publish([this](rank_id) noexcept { return byte_range{0, header_.count}; });
  await_peers();
  throw error{errc::invalid_argument, peerbus::detail::concat(title(), " was given ", objection)};
}

PEERBUS_ERROR_PATH void call::throw_refused(rank_id refuser, const call_header& theirs) {
  const auto* const text = reinterpret_cast<const char*>(road_.payload(on_.round_, refuser, 0));
  throw agreed_error{error{
      errc::refused, peerbus::detail::concat(title(), " did not happen: ", refuser, " was given ",
                                             std::string_view{text, theirs.count})}};
}

PEERBUS_ERROR_PATH void call::throw_mismatch(rank_id other, const call_header& first,
                                             const call_header& theirs) {
  throw agreed_error{
      error{errc::mismatch,
            peerbus::detail::concat(title(), " did not happen: ", rank_id{0}, " called ",
                                    describe(first), ", ", other, " called ", describe(theirs))}};
}

PEERBUS_ERROR_PATH std::string call::title() const {
  return peerbus::detail::concat(header_.operation.view(), " (collective call ", on_.calls_, ")");
}

PEERBUS_ERROR_PATH void call::fail_waiting(errc code) {
  rank_group& group = road_.group();
  std::string text = title() + " failed in the middle";
  std::size_t named = 0;
  for (const rank_id peer : peers()) {
    const std::uint64_t seen = road_.latest(peer);
    if (seen >= on_.round_) continue;
    text += peerbus::detail::concat(named++ == 0 ? ": waited for " : ", ", peer, " (round ", seen,
                                    ", expected ", on_.round_, ")");
  }
  if (const auto gone = group.missing(); !gone.empty()) text += "; " + gone;
  group.fail(code, text);
}

}  // namespace peerbus::collective::detail
