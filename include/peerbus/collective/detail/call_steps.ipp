// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/collective/detail/call_rounds.hpp>
#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::collective::detail {

PEERBUS_INLINE void call_rounds::begin_steps() {
  is_in_steps_ = true;
  if (check_.is_first(++team_.round_)) check_.write(team_.round_);
}

PEERBUS_INLINE void call_rounds::send_step(std::uint64_t step, rank_id peer, std::size_t slot,
                                           byte_range range) {
  const bool is_first = check_.is_first(team_.round_);
  if (const errc code = pages_.send_step(team_.round_, step, peer, slot, is_first, range);
      code != errc::ok)
    check_.fail(code, team_.round_);
}

PEERBUS_INLINE void call_rounds::await_step(std::uint64_t step, rank_id peer,
                                            peerbus::detail::function_ref<bool(rank_id)> is_told) {
  if (!until_) until_ = pages_.communicator().default_deadline();
  check_.begin_wait(what_);
  if (const errc code = pages_.await_step(team_.round_, step, peer, *until_); code != errc::ok)
    check_.fail(code, team_.round_, peer, step);
  check_.end_wait(team_.round_, peer);
  if (!check_.is_first(team_.round_)) return;
  // A peer that has found a difference, or makes a call without steps, publishes the round to all.
  if (pages_.has_published(team_.round_, peer) || !check_.is_same(team_.round_, peer))
    leave_steps(is_told);
}

PEERBUS_ERROR_PATH void call_rounds::leave_steps(
    peerbus::detail::function_ref<bool(rank_id)> is_told) {
  // The others have the header already, and may be reading it.
  for (const rank_id peer : peers())
    if (!is_told(peer))
      if (const errc code = pages_.send_header(team_.round_, peer); code != errc::ok)
        check_.fail(code, team_.round_);
  signal();
  await_peers();
  check_.find_difference(team_.round_);
  // A rank leaves the steps only because calls differ, so that this is not reached.
  pages_.group().fail(
      errc::mismatch,
      check_.title() + " was left by a rank, although all ranks make the same call");
}

}  // namespace peerbus::collective::detail
