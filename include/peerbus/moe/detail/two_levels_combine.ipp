// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/core/text.hpp>
#include <peerbus/moe/detail/batch.hpp>
#include <peerbus/moe/detail/check_options.hpp>
#include <peerbus/moe/detail/check_sum.hpp>
#include <peerbus/moe/detail/two_levels.hpp>

namespace peerbus::moe::detail {

template <partly_direct_transport Transport, token_codec Codec, row_layout Layout>
void two_levels<Transport, Codec, Layout>::combine(const received_type& rows, std::span<bf16> out,
                                                   const combine_options& options, deadline until) {
  const combine_sum wanted{out, options.terms};
  serial("combine", options.as, until, [&] {
    require("combine", options.waited);
    require_output_attachment(options.attached, near_->rows.config());
    batch_state& state = state_of("combine", rows, stage::received);
    refusal found = objection_of_caller(options.refuse);
    if (!found) found = objection_to_sum(state, wanted);
    state.why = own(found);
  });
  const batch_state& state = states_.of(rows.ticket().number);
  guarded(*near_,
          [&] { hand_on::publish("combine", near_->rows, rows, state.why, options.as, until); });
  finish(rows, wanted, options.as, until, options.waited);
}

template <partly_direct_transport Transport, token_codec Codec, row_layout Layout>
void two_levels<Transport, Codec, Layout>::combine_send(const received_type& rows,
                                                        const publish_options& options,
                                                        deadline until) {
  serial("combine_send", options.as, until, [&] {
    require("combine_send", {});
    require_output_attachment(options.attached, near_->rows.config());
    state_of("combine_send", rows, stage::received).why = own(objection_of_caller(options.refuse));
  });
  const batch_state& state = states_.of(rows.ticket().number);
  guarded(*near_, [&] {
    hand_on::publish("combine_send", near_->rows, rows, state.why, options.as, until);
  });
}

template <partly_direct_transport Transport, token_codec Codec, row_layout Layout>
void two_levels<Transport, Codec, Layout>::combine_recv(const received_type& rows,
                                                        std::span<bf16> out,
                                                        const sum_options& options,
                                                        deadline until) {
  const combine_sum wanted{out, options.terms};
  serial("combine_recv", options.as, until, [&] {
    require("combine_recv", options.waited);
    batch_state& state = state_of("combine_recv", rows, stage::returning);
    if (const refusal found = own(objection_to_sum(state, wanted)))
      refuse("combine", state.number, found);
  });
  finish(rows, wanted, options.as, until, options.waited);
}

template <partly_direct_transport Transport, token_codec Codec, row_layout Layout>
void two_levels<Transport, Codec, Layout>::finish(const received_type& rows,
                                                  const combine_sum& wanted, lane as,
                                                  deadline until,
                                                  std::span<std::int64_t> all_waited) {
  // The lanes only read the state, and find the same refusals.
  const batch_state& state = states_.of(rows.ticket().number);
  const refusal own = state.why;
  const auto& arrived = *state.rows;
  const auto sums = arrived.columns().outputs().first(arrived.count() * hidden_);
  const auto waited_here = of_lane_0(all_waited, as);
  const auto sum_near = [&](std::span<std::int64_t> waited) {
    return guarded(*near_, [&] {
      return named(*near_, hand_on::sum(near_->rows, rows, {sums, {}}, as, until, waited));
    });
  };
  refusal why = measured(*near_, waited_here, sum_near);
  const bool was_summed = !why;
  const refusal met = guarded(*far_, [&] {
    return measured(*far_, waited_here, [&](std::span<std::int64_t> waited) {
      hand_on::publish("combine", far_->rows, arrived, why, as, until);
      return named(*far_, hand_on::sum(far_->rows, arrived, wanted, as, until, waited));
    });
  });
  if (!why) why = met;
  if (!why) return;
  if (was_summed) {
    // All groups refuse. The ranks of this one have read the outputs of each other already. None of
    // them may change these before all have: the refusal on this level makes sure of that.
    serial(as, until, [&] { hand_on::take_back(near_->rows, state.number); });
    guarded(*near_, [&] { hand_on::publish("combine", near_->rows, rows, why, as, until); });
    static_cast<void>(sum_near({}));
  }
  refuse("combine", state.number, own ? own : why);
}

template <partly_direct_transport Transport, token_codec Codec, row_layout Layout>
auto two_levels<Transport, Codec, Layout>::state_of(std::string_view doing,
                                                    const received_type& rows, stage expected)
    -> batch_state& {
  static_cast<void>(hand_on::behind(doing, near_->rows, rows, expected));
  batch_state& state = states_.of(rows.ticket().number);
  if (state.number != rows.ticket().number || state.reached != progress::received)
    throw error{
        errc::invalid_argument,
        peerbus::detail::concat(doing, " was given the rows of dispatch ", rows.ticket().number,
                                ", which dispatch ", state.number, " has replaced")};
  return state;
}

template <partly_direct_transport Transport, token_codec Codec, row_layout Layout>
refusal two_levels<Transport, Codec, Layout>::objection_to_sum(batch_state& state,
                                                               const combine_sum& wanted) {
  return check_sum(hand_on::batch_of(far_->rows, state.number).leaving, hidden_, wanted);
}

}  // namespace peerbus::moe::detail
