// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/moe/control/checked_protocol.hpp>
#include <peerbus/moe/control/control_protocol.hpp>
#include <peerbus/moe/plan/recv_plan.hpp>
#include <peerbus/moe/plan/send_plan.hpp>

namespace peerbus::moe::detail {

PEERBUS_INLINE const control_protocol& control_protocol::of(const block_geometry& geometry,
                                                            bool distrusts) noexcept {
  static constexpr struct final_counts_first final : counts_first {
  } together;
  static constexpr struct final_one_phase final : one_phase {
  } in_slots;
  static constexpr checked_counts_first checked_together;
  static constexpr checked_one_phase checked_in_slots;
  if (geometry.has_slots()) {
    if (distrusts) return checked_in_slots;
    return in_slots;
  }
  if (distrusts) return checked_together;
  return together;
}

PEERBUS_INLINE void control_protocol::take_memory(control_messages& messages, batch& before,
                                                  const step& this_step, deadline until) const {
  if (const auto release = give_up(messages, before, this_step))
    messages.await_all(*release, until,
                       "; they still have rows of an earlier dispatch in its memory");
}

// --- counts first --------------------------------------------------------------------------------

PEERBUS_INLINE std::optional<control_protocol::step> counts_first::give_up(
    control_messages& /*messages*/, batch& /*before*/, const step& /*this_step*/) const {
  return std::nullopt;
}

PEERBUS_INLINE void counts_first::post(control_messages& messages, const batch& posted,
                                       const step& this_step, std::span<const std::byte> note,
                                       const refusal& found) const {
  messages.post_counts(this_step, posted.leaving.counts(), note, found);
  messages.announce(this_step);
}

PEERBUS_INLINE departure counts_first::await_counts(control_messages& messages, batch& counted,
                                                    const step& this_step, bool wait,
                                                    deadline until,
                                                    std::span<std::int64_t> waited) {
  if (wait)
    messages.await_all(this_step, until, {}, waited);
  else if (!messages.all_came(this_step))
    return departure::later;
  return counted.refuse(messages.refused(this_step)) ? departure::refused : departure::placed;
}

PEERBUS_INLINE departure counts_first::place(control_messages& messages, batch& counted,
                                             const step& this_step, bool wait, deadline until,
                                             std::span<std::int64_t> waited) const {
  const departure state = await_counts(messages, counted, this_step, wait, until, waited);
  if (state == departure::placed) counted.leaving.place(messages.counts(this_step));
  return state;
}

PEERBUS_INLINE void counts_first::after_send(const control_messages& messages, batch& sent,
                                             const step& this_step) const {
  sent.arriving.place(messages.counts(this_step));
}

PEERBUS_INLINE void counts_first::receive(control_messages& messages, batch& /*sent*/,
                                          const step& rows_step, deadline until,
                                          std::span<std::int64_t> waited) const {
  messages.await_all(rows_step, until, {}, waited);
}

PEERBUS_INLINE errc counts_first::abandon(batch& refused, any_row_path& /*path*/) const noexcept {
  refused.undo();  // The rows that the set held before are still there.
  return errc::ok;
}

// --- one phase -----------------------------------------------------------------------------------

PEERBUS_INLINE std::optional<control_protocol::step> one_phase::give_up(
    control_messages& messages, batch& before, const step& this_step) const {
  if (before.reached != stage::received) return std::nullopt;
  const step release{this_step.operation, this_step.number, this_step.set, phase::outputs,
                     ++before.combines};
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
  sent.arriving.place(messages.own_counts(rows_step, sent.leaving.geometry().blocks));
}

PEERBUS_INLINE errc one_phase::abandon(batch& refused, any_row_path& path) const noexcept {
  refused.undo();
  return path
      .settle();  // No later signal would tell that the rows of this rank have left its memory.
}

}  // namespace peerbus::moe::detail
