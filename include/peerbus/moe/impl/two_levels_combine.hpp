// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include <peerbus/codec/concept.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/call_options.hpp>
#include <peerbus/moe/detail/batch.hpp>
#include <peerbus/moe/detail/check_options.hpp>
#include <peerbus/moe/detail/check_sum.hpp>
#include <peerbus/moe/detail/hand_on.hpp>
#include <peerbus/moe/detail/two_levels.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/refusal.hpp>
#include <peerbus/moe/road/sum_copies.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::moe::detail {

template <partly_direct_transport Transport, token_codec Codec, row_layout Layout>
void two_levels<Transport, Codec, Layout>::combine(const received_type& rows, std::span<bf16> out,
                                                   const combine_options& options, deadline until) {
  require("combine", options.as, options.waited);
  require_output_attachment(options.attached, near_->rows.config());
  batch_state& state = state_of("combine", rows, stage::received);
  const combine_sum wanted{out, options.terms};
  refusal found = objection_of_caller(options.refuse);
  if (!found) found = objection_to_sum(state, wanted);
  guarded(*near_, [&] { hand_on::publish("combine", near_->rows, rows, own(found), until); });
  finish(state, rows, wanted, own(found), until, options.waited);
}

template <partly_direct_transport Transport, token_codec Codec, row_layout Layout>
void two_levels<Transport, Codec, Layout>::combine_send(const received_type& rows,
                                                        const publish_options& options,
                                                        deadline until) {
  require("combine_send", options.as, {});
  require_output_attachment(options.attached, near_->rows.config());
  batch_state& state = state_of("combine_send", rows, stage::received);
  state.why = own(objection_of_caller(options.refuse));
  guarded(*near_, [&] { hand_on::publish("combine_send", near_->rows, rows, state.why, until); });
}

template <partly_direct_transport Transport, token_codec Codec, row_layout Layout>
void two_levels<Transport, Codec, Layout>::combine_recv(const received_type& rows,
                                                        std::span<bf16> out,
                                                        const sum_options& options,
                                                        deadline until) {
  require("combine_recv", options.as, options.waited);
  batch_state& state = state_of("combine_recv", rows, stage::returning);
  const combine_sum wanted{out, options.terms};
  if (const refusal found = objection_to_sum(state, wanted))
    throw bad_input(peerbus::detail::concat("combine ", state.number), found);
  finish(state, rows, wanted, std::exchange(state.why, {}), until, options.waited);
}

template <partly_direct_transport Transport, token_codec Codec, row_layout Layout>
void two_levels<Transport, Codec, Layout>::finish(batch_state& state, const received_type& rows,
                                                  const combine_sum& wanted, const refusal& own,
                                                  deadline until, std::span<std::int64_t> waited) {
  const auto& arrived = *state.rows;
  const auto sums = arrived.columns().outputs().first(arrived.count() * hidden_);
  const auto sum_near = [&](std::span<std::int64_t> near_waited) {
    return guarded(*near_, [&] {
      return named(*near_, hand_on::sum(near_->rows, rows, {sums, {}}, until, near_waited));
    });
  };
  refusal why = measured(*near_, waited, sum_near);
  const bool was_summed = !why;
  const refusal met = guarded(*far_, [&] {
    return measured(*far_, waited, [&](std::span<std::int64_t> far_waited) {
      hand_on::publish("combine", far_->rows, arrived, why, until);
      return named(*far_, hand_on::sum(far_->rows, arrived, wanted, until, far_waited));
    });
  });
  if (!why) why = met;
  if (!why) return;
  if (was_summed) {
    // All groups refuse. The ranks of this one have read the outputs of each other already. None of
    // them may change these before all have: the refusal on this level makes sure of that.
    hand_on::take_back(near_->rows, state.number);
    guarded(*near_, [&] { hand_on::publish("combine", near_->rows, rows, why, until); });
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
  return check_sum(hand_on::batch(far_->rows, state.number).leaving, hidden_, wanted);
}

}  // namespace peerbus::moe::detail
