// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/control/control_protocol.hpp>
#include <peerbus/moe/plan/count_table.hpp>
#include <peerbus/moe/plan/recv_plan.hpp>
#include <peerbus/moe/plan/refusal.hpp>
#include <peerbus/moe/plan/send_plan.hpp>

namespace peerbus::moe::detail {

PEERBUS_INLINE const control_protocol& control_protocol::of(
    const block_geometry& geometry) noexcept {
  static constexpr counts_first together;
  static constexpr one_phase in_slots;
  if (geometry.has_slots()) return in_slots;
  return together;
}

PEERBUS_INLINE std::optional<refusal_of> control_protocol::take_memory(control_messages& messages,
                                                                       batch& before,
                                                                       const step& this_step,
                                                                       const refusal& objection,
                                                                       deadline until) const {
  const auto release = give_up(messages, before, this_step, objection);
  if (!release) return std::nullopt;
  messages.await_all(*release, until,
                     "; they still have rows of an earlier dispatch in its memory");
  auto found = objection ? std::optional{refusal_of{messages.group().rank(), objection}}
                         : messages.refused(*release);
  if (found) before.reached = stage::received;
  return found;
}

// --- what peers wrote, for batches with `checks` ------------------------------------------------

/// Records what this rank has found, if anything. Returns whether it has.
inline bool refuse_found(const control_messages& messages, batch& checked, const refusal& found) {
  return found && checked.refuse(refusal_of{messages.group().rank(), found});
}

/// Records the refusal of a peer that has sent no rows because it found a wrong number. Such a peer
/// raises its signal of rows beyond this step. Returns whether there is such a peer.
inline bool refuse_withheld(const control_messages& messages, batch& checked,
                            const control_messages::step& rows_step) {
  const control_messages::step combine{group_operation::combine, rows_step.number, rows_step.set,
                                       control_messages::phase::outputs, checked.combines + 1};
  for (const rank_id peer : messages.group().peers()) {
    if (messages.announced(rows_step, peer) <= rows_step.epoch) continue;
    const verdict verdict_of_peer = messages.verdict_of(combine, peer);
    if (verdict_of_peer.epoch == combine.epoch && is_of_peer(verdict_of_peer.why.reason))
      return checked.refuse(refusal_of{peer, verdict_of_peer.why});
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

// --- counts first --------------------------------------------------------------------------------

PEERBUS_INLINE std::optional<control_protocol::step> counts_first::give_up(
    control_messages& /*messages*/, batch& /*before*/, const step& /*this_step*/,
    const refusal& /*objection*/) const {
  return std::nullopt;
}

PEERBUS_INLINE void counts_first::post(control_messages& messages, const batch& posted,
                                       const step& this_step, std::span<const std::byte> note,
                                       const refusal& found) const {
  messages.post_counts(this_step, posted.leaving.counts(), note, found);
  messages.announce(this_step);
}

PEERBUS_INLINE departure counts_first::place(control_messages& messages, batch& counted,
                                             const step& this_step, bool wait, deadline until,
                                             std::span<std::int64_t> waited) const {
  if (wait)
    messages.await_all(this_step, until, {}, waited);
  else if (!messages.all_came(this_step))
    return departure::later;
  if (counted.refuse(messages.refused(this_step))) return departure::refused;
  if (!counted.checks) {
    counted.leaving.place(messages.counts(this_step));
    return departure::placed;
  }
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

PEERBUS_INLINE void counts_first::after_send(const control_messages& messages, batch& sent,
                                             const step& this_step) const {
  sent.arriving.place(sent.checks ? sent.checks->counts() : messages.counts(this_step));
}

PEERBUS_INLINE void counts_first::receive(control_messages& messages, batch& sent,
                                          const step& rows_step, deadline until,
                                          std::span<std::int64_t> waited) const {
  messages.await_all(rows_step, until, {}, waited);
  if (!sent.checks || refuse_withheld(messages, sent, rows_step)) return;
  refuse_found(messages, sent,
               sent.checks->take_rows(sent.arriving, messages.local_set(rows_step.set)));
}

PEERBUS_INLINE errc counts_first::abandon(batch& refused, any_row_path& /*path*/) const noexcept {
  refused.undo();  // The rows that the set held before are still there.
  return errc::ok;
}

// --- one phase -----------------------------------------------------------------------------------

PEERBUS_INLINE std::optional<control_protocol::step> one_phase::give_up(
    control_messages& messages, batch& before, const step& this_step,
    const refusal& objection) const {
  if (before.reached != stage::received) return std::nullopt;
  const step release{this_step.operation, this_step.number, this_step.set, phase::outputs,
                     ++before.combines};
  if (objection) messages.post_verdict(release, objection, 0);
  messages.announce(release);
  before.reached = stage::released;
  return release;
}

PEERBUS_INLINE void one_phase::post(control_messages& messages, const batch& posted,
                                    const step& this_step, std::span<const std::byte> note,
                                    const refusal& found) const {
  messages.post_own_counts(this_step, posted.leaving.geometry().blocks, posted.leaving.counts(),
                           note, found);
  if (found) messages.announce(this_step);
}

PEERBUS_INLINE departure one_phase::place(control_messages& /*messages*/, batch& counted,
                                          const step& /*this_step*/, bool /*wait*/,
                                          deadline /*until*/,
                                          std::span<std::int64_t> /*waited*/) const {
  counted.leaving.place_in_slots();
  return departure::placed;
}

PEERBUS_INLINE void one_phase::after_send(const control_messages& /*messages*/, batch& /*sent*/,
                                          const step& /*this_step*/) const {}

PEERBUS_INLINE void one_phase::receive(control_messages& messages, batch& sent,
                                       const step& rows_step, deadline until,
                                       std::span<std::int64_t> waited) const {
  messages.await_all(rows_step, until, {}, waited);
  if (sent.refuse(messages.refused(rows_step))) return;
  const block_geometry& geometry = sent.leaving.geometry();
  if (!sent.checks) {
    sent.arriving.place(messages.own_counts(rows_step, geometry.blocks));
    return;
  }
  refusal found = check_messages(messages, rows_step, false);
  if (!found)
    found = sent.checks->take_counts(
        messages.shown_counts(rows_step, geometry.blocks), sent.leaving.counts(),
        [&](rank_id source) {
          return messages.verdict_of(rows_step, source).epoch == rows_step.epoch;
        },
        geometry.source_rows);
  if (!found) {
    sent.arriving.place(sent.checks->counts());
    found = sent.checks->take_rows(sent.arriving, messages.local_set(rows_step.set));
  }
  refuse_found(messages, sent, found);
}

PEERBUS_INLINE errc one_phase::abandon(batch& refused, any_row_path& path) const noexcept {
  refused.undo();
  return path
      .settle();  // No later signal would tell that the rows of this rank have left its memory.
}

}  // namespace peerbus::moe::detail
