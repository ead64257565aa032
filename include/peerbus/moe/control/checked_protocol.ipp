// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/control/checked_protocol.hpp>
#include <peerbus/moe/plan/refusal.hpp>

namespace peerbus::moe::detail {

/// Records what this rank has found, if anything. Returns whether it has.
inline bool refuse_found(const control_messages& messages, batch& checked, const refusal& found) {
  return found && checked.refuse(refusal_of{messages.group().rank(), found});
}

/// Records the finding of a rank that has sent no rows because of it, which raises its signal of
/// rows further than to this step. Returns whether there is such a rank.
inline bool refuse_withheld(const control_messages& messages, batch& checked,
                            const control_messages::step& rows_step) {
  const control_messages::step combine{group_operation::combine, rows_step.number, rows_step.set,
                                       control_messages::phase::outputs, checked.combines + 1};
  for (const rank_id peer : messages.group().peers()) {
    if (messages.announced(rows_step, peer) <= rows_step.epoch) continue;
    const verdict told = messages.verdict_of(combine, peer);
    if (told.epoch == combine.epoch && is_of_peer(told.why.reason))
      return checked.refuse(refusal_of{peer, told.why});
  }
  return false;
}

/// Returns the first rank whose signal of counts came without counts, or whose note has a wrong
/// size, if any.
inline refusal check_messages(const control_messages& messages,
                              const control_messages::step& this_step, bool all_send) {
  for (const rank_id peer : messages.group().view().members()) {
    if (peer == messages.group().rank()) continue;
    const verdict record = messages.verdict_of(this_step, peer);
    if (record.epoch != this_step.epoch) {
      if (!all_send) continue;
      return refuse_peer(refusal_reason::counts_missing, peer, 0, record.epoch, this_step.epoch);
    }
    if (record.brought != 0 && record.brought != messages.note_bytes())
      return refuse_peer(refusal_reason::note_of_peer, peer, 0, record.brought,
                         messages.note_bytes());
  }
  return {};
}

PEERBUS_INLINE departure checked_counts_first::place(control_messages& messages, batch& counted,
                                                     const step& this_step, bool wait,
                                                     deadline until,
                                                     std::span<std::int64_t> waited) const {
  const departure state = await_counts(messages, counted, this_step, wait, until, waited);
  if (state != departure::placed) return state;
  refusal found = check_messages(messages, this_step, true);
  if (!found)
    found = counted.checks->take_counts(
        messages.counts(this_step), counted.leaving.counts(),
        [&](rank_id source) { return messages.group().view().contains(source); },
        counted.most_tokens);
  if (refuse_found(messages, counted, found)) return departure::refused;
  counted.leaving.place(counted.checks->counts());
  return departure::placed;
}

PEERBUS_INLINE void checked_counts_first::after_send(const control_messages& /*messages*/,
                                                     batch& sent, const step& /*this_step*/) const {
  sent.arriving.place(sent.checks->counts());
}

PEERBUS_INLINE void checked_counts_first::receive(control_messages& messages, batch& sent,
                                                  const step& rows_step, deadline until,
                                                  std::span<std::int64_t> waited) const {
  counts_first::receive(messages, sent, rows_step, until, waited);
  if (refuse_withheld(messages, sent, rows_step)) return;
  refuse_found(messages, sent,
               sent.checks->take_rows(sent.arriving, messages.local_set(rows_step)));
}

PEERBUS_INLINE void checked_one_phase::receive(control_messages& messages, batch& sent,
                                               const step& rows_step, deadline until,
                                               std::span<std::int64_t> waited) const {
  messages.await_all(rows_step, until, {}, waited);
  if (sent.refuse(messages.refused(rows_step))) return;
  refusal found = check_messages(messages, rows_step, false);
  if (!found)
    found = sent.checks->take_counts(
        messages.shown_counts(rows_step, sent.leaving.geometry().blocks), sent.leaving.counts(),
        [&](rank_id source) {
          return messages.verdict_of(rows_step, source).epoch == rows_step.epoch;
        },
        sent.leaving.geometry().source_rows);
  if (!found) {
    sent.arriving.place(sent.checks->counts());
    found = sent.checks->take_rows(sent.arriving, messages.local_set(rows_step));
  }
  refuse_found(messages, sent, found);
}

}  // namespace peerbus::moe::detail
