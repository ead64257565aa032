// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/moe/plan/send_plan.hpp>
#include <peerbus/moe/control/handshake.hpp>

namespace peerbus::moe::detail {

PEERBUS_INLINE void handshake::take_memory(post_office& post, batch& of, const step& this_step,
                                           deadline until) {
  if (give_up(post, of, this_step))
    post.await_all(release_of(of, this_step), until,
                   "; they still have rows of an earlier dispatch in its memory");
}

PEERBUS_INLINE bool handshake::give_up(post_office& post, batch& of, const step& this_step) {
  if (!of.leaving.geometry().has_slots() || of.reached != stage::received) return false;
  ++of.combines;
  post.announce(release_of(of, this_step));
  of.reached = stage::released;
  return true;
}

PEERBUS_INLINE void handshake::post(post_office& post, const batch& of, const step& this_step,
                                    std::span<const std::byte> note, const refusal& found) {
  const departures& leaving = of.leaving;
  if (!leaving.geometry().has_slots()) {
    post.post_counts(this_step, leaving.counts(), note, found);
    post.announce(this_step);
    return;
  }
  post.post_own_counts(this_step, leaving.geometry().blocks, leaving.counts(), note, found);
  if (found) post.announce(this_step);
}

PEERBUS_INLINE departure handshake::place(post_office& post, batch& of, const step& this_step,
                                          bool wait, deadline until,
                                          std::span<std::int64_t> waited) {
  if (of.leaving.geometry().has_slots()) {
    of.leaving.place_in_slots();
    return departure::placed;
  }
  if (wait)
    post.await_all(this_step, until, {}, waited);
  else if (!post.all_came(this_step))
    return departure::later;
  if (of.refuse(post.refused(this_step))) return departure::refused;
  of.leaving.place(post.counts(this_step));
  return departure::placed;
}

PEERBUS_INLINE void handshake::after_send(const post_office& post, batch& of,
                                          const step& this_step) {
  if (!of.leaving.geometry().has_slots()) of.arriving.place(post.counts(this_step));
}

PEERBUS_INLINE void handshake::receive(post_office& post, batch& of, const step& rows_step,
                                       deadline until, std::span<std::int64_t> waited) {
  post.await_all(rows_step, until, {}, waited);
  if (!of.leaving.geometry().has_slots() || of.refuse(post.refused(rows_step))) return;
  of.arriving.place(post.own_counts(rows_step, of.leaving.geometry().blocks));
}

PEERBUS_INLINE errc handshake::abandon(batch& of, any_road& road) noexcept {
  of.undo();
  // With slots, no later signal would tell that the rows of this rank have left its memory.
  return of.leaving.geometry().has_slots() ? road.settle() : errc::ok;
}

}  // namespace peerbus::moe::detail
