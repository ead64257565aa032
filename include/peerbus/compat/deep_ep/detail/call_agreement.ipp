// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include <peerbus/compat/deep_ep/detail/call_agreement.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::deep_ep::detail {

PEERBUS_INLINE void call_agreement::resume() noexcept {
  board_.resume();
  calls_ = board_.group().view().number() << 32U;
  latest_.reset();
  growth_ = {};
  started_ = {};
  refusals_.clear();
}

PEERBUS_INLINE std::uint64_t call_agreement::agree(const call_key& key, bool has_channel,
                                                   const std::optional<deadline>& until,
                                                   std::uint64_t room) {
  if (has_channel && latest_ == key) return room;
  call_statement own = statement(calls_);
  own.key = key;
  own.room = room;
  const outcome settled = settle(own, until.value_or(default_deadline()));
  if (settled.refused) throw error{*settled.refused};
  latest_ = key;
  return settled.room;
}

PEERBUS_INLINE void call_agreement::refuse(const error& why, const std::optional<deadline>& until) {
  const deadline end = until.value_or(default_deadline());
  // The ranks may have refused it while this rank prepared the operation that it had noted.
  if (auto known = take_known(calls_)) return refuse_noted(std::move(*known), end);
  call_statement own = statement(calls_);
  own.refuse(why);
  static_cast<void>(settle(own, end));
}

PEERBUS_INLINE std::optional<error> call_agreement::take_refusal(
    std::uint64_t call, const std::optional<deadline>& until) {
  auto found = take_known(call);
  if (!found) return std::nullopt;
  finish(found->operations, until.value_or(default_deadline()));
  return std::move(found->why);
}

PEERBUS_INLINE void call_agreement::look(deadline until) {
  std::optional<std::uint64_t> call;
  for (const rank_id peer : board_.group().peers())
    if (const auto statement = board_.next(peer))
      call = std::min(call.value_or(statement->call), statement->call);
  if (!call) call = started_.poll(board_);
  if (!call || *call > calls_) return;
  const outcome settled = exchange(statement(*call), until);
  started_.decided(settled.call);
  if (settled.refused) {
    keep(settled, refuse_begun(settled.call, started_.of(settled.call), until));
  } else if (settled.room != 0) {
    growth_ = {++calls_, settled.room};
  }
}

PEERBUS_INLINE std::optional<call_agreement::refusal> call_agreement::take_known(
    std::uint64_t call) {
  const auto found = std::find_if(refusals_.begin(), refusals_.end(),
                                  [&](const auto& known) { return known.call == call; });
  if (found == refusals_.end()) return std::nullopt;
  refusal taken = std::move(*found);
  refusals_.erase(found);
  return taken;
}

PEERBUS_INLINE call_agreement::outcome call_agreement::settle(const call_statement& own,
                                                              deadline until) {
  for (;;) {
    outcome settled = exchange(own, until);
    if (settled.call != own.call) {  // An earlier call, which this rank carries out.
      if (settled.refused)
        keep(settled, refuse_begun(settled.call, started_.of(settled.call), until));
      continue;
    }
    if (settled.refused) latest_.reset();
    const operations refused = refuse_begun(settled.call, {}, until);
    finish(refused, until);
    if (!settled.refused && !refused.empty() && settled.room != 0) ++calls_;
    return settled;
  }
}

PEERBUS_INLINE call_agreement::operations call_agreement::refuse_begun(std::uint64_t call,
                                                                       const started_operation& own,
                                                                       deadline until) {
  operations refused;
  for (const rank_id rank : board_.group().view().members()) {
    const auto begun = board_.latest(rank).started_for(call);
    if (begun.what != started_operation::kind::none && begun != own &&
        std::find(refused.begin(), refused.end(), begun) == refused.end())
      refused.push_back(begun);
  }
  for (const started_operation& begun : refused) channels_.refuse(begun, until);
  return refused;
}

PEERBUS_INLINE void call_agreement::refuse_noted(refusal known, deadline until) {
  channels_.refuse(started_.of(calls_), until);
  known.operations.push_back(started_.of(calls_));
  finish(known.operations, until);
}

PEERBUS_INLINE call_agreement::outcome call_agreement::exchange(const call_statement& own,
                                                                deadline until) {
  board_.exchange(own, until);
  rank_group& group = board_.group();
  std::uint64_t first = own.call;
  for (const rank_id rank : group.view().members())
    first = std::min(first, board_.latest(rank).call);
  std::uint64_t room = 0;
  for (const rank_id rank : group.view().members()) {
    const auto entry = board_.latest(rank);
    if (entry.call == first) room = std::max(room, entry.room);
    if (entry.call != first && !entry.remembers(first))
      group.fail(errc::mismatch,
                 peerbus::detail::concat(names_.dispatch, ": ranks differ in a call after which ",
                                         rank, " has made ", entry.call - first,
                                         " more, expected hooks to be called before that"));
  }
  return {first, error_of(first), room};
}

PEERBUS_INLINE std::optional<error> call_agreement::error_of(std::uint64_t call) const {
  std::optional<call_key> first_key;
  started_operation first_begun;
  std::optional<error> found;
  for (const rank_id rank : board_.group().view().members()) {
    const call_statement entry = board_.latest(rank);
    if (entry.call == call && entry.objection != errc::ok)
      return error{errc::refused,
                   peerbus::detail::concat("the call did not happen, because ", rank,
                                           " was given bad arguments: ", entry.refusal())};
    const auto begun = entry.started_for(call);
    const call_key key =
        begun.what == started_operation::kind::none ? entry.key : channels_.key_of(begun);
    if (!first_key) {
      first_key = key;
      first_begun = begun;
    }
    if (!found) found = detail::difference(names_.dispatch, parts_, *first_key, key, rank);
    if (!found) found = detail::difference(names_, first_begun, begun, rank);
  }
  return found;
}

}  // namespace peerbus::deep_ep::detail
