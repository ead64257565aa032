// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/core/placed.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/engine/check_options.hpp>
#include <peerbus/moe/engine/check_sum.hpp>
#include <peerbus/moe/engine/relay_engine.hpp>

namespace peerbus::moe::detail {

PEERBUS_INLINE std::optional<refusal_of> relay_engine::combine(ticket rows,
                                                               const combine_sum& wanted,
                                                               const combine_options& options,
                                                               deadline until) {
  serial("combine", options.as, until, [&] {
    require("combine", options.waited);
    require_output_attachment(options.attached, config_);
    batch_state& state = state_of("combine", rows, stage::received);
    refusal found = objection_of_caller(options.refuse);
    if (!found) found = objection_to_sum(state, wanted);
    state.why = own(found);
  });
  publish("combine", states_.of(rows.number), {.as = options.as, .attached = options.attached},
          until);
  return finish(rows, wanted, options.as, until, options.waited);
}

PEERBUS_INLINE void relay_engine::combine_send(ticket rows, const publish_options& options,
                                               deadline until) {
  serial("combine_send", options.as, until, [&] {
    require("combine_send", {});
    require_output_attachment(options.attached, config_);
    state_of("combine_send", rows, stage::received).why = own(objection_of_caller(options.refuse));
  });
  publish("combine_send", states_.of(rows.number), options, until);
}

PEERBUS_INLINE void relay_engine::publish(const char* doing, const batch_state& state,
                                          const publish_options& options, deadline until) {
  near_.core().begin_combine(doing, named(state), options, until,
                             [&](const batch&) { return state.why; });
  near_.core().advance(nullptr, options.as, until);
}

PEERBUS_INLINE std::optional<refusal_of> relay_engine::combine_recv(ticket rows,
                                                                    const combine_sum& wanted,
                                                                    const sum_options& options,
                                                                    deadline until) {
  serial("combine_recv", options.as, until, [&] {
    require("combine_recv", options.waited);
    batch_state& state = state_of("combine_recv", rows, stage::returning);
    refused_ = own(objection_to_sum(state, wanted));
  });
  if (refused_) return answer(refused_);
  return finish(rows, wanted, options.as, until, options.waited);
}

PEERBUS_INLINE std::optional<refusal_of> relay_engine::finish(ticket rows,
                                                              const combine_sum& wanted,
                                                              lane caller, deadline until,
                                                              std::span<std::int64_t> all_waited) {
  // The lanes only read the state, and find the same refusals.
  const batch_state& state = states_.of(rows.number);
  const refusal own_refusal = state.why;
  const std::size_t values = far_.parts->batches.at(rows.number).arriving.rows() * config_.hidden;
  const set_view far_set = set_of(far_, rows.number);
  combine_sum sums{};
  if (config_.relay_sums == relay_sums::f32)
    sums.f32_out = {far_set.sum(0), values};
  else
    sums.out = {far_set.output(0), values};
  combine_sum total = wanted;
  const auto waited_here = of_lane_0(all_waited, caller);
  if (config_.weights_at_combine) {
    serial(caller, until, [&] {
      const level_waits waits{far_, waited_here};
      far_.core().send_weights(rows, wanted.terms.weights, static_cast<bool>(own_refusal));
      far_.core().await_weights(rows, until, waits.own());
    });
    sums.terms.weights = {peerbus::detail::placed<const float>(far_set.late_weights(0)),
                          values / config_.hidden * config_.top_k};
    if (!wanted.terms.local.empty()) total.local_weights = wanted.terms.weights;
    total.terms.weights = {};
  }
  const auto finish_level = [&](level& this_level, const combine_sum& sum,
                                std::span<std::int64_t> waited) {
    const level_waits waits{this_level, waited};
    return relayed(this_level,
                   this_level.core().finish_combine(rows, sum, caller, until, waits.own()));
  };
  const auto publish_on = [&](level& this_level, const refusal& why, std::uint64_t brings) {
    this_level.core().begin_combine(
        "combine", rows, {.as = caller, .attached = brings != 0}, until,
        [&](const batch&) { return why; }, brings);
    this_level.core().advance(nullptr, caller, until);
  };
  refusal why = finish_level(near_, sums, waited_here);
  const bool was_summed = !why;
  const std::uint64_t brings = was_summed && attachments_return() ? attached_in_group(rows) : 0;
  if (brings != 0) hand_attachments(rows, brings, caller);
  publish_on(far_, why, brings);
  const refusal met = finish_level(far_, total, waited_here);
  if (!why) why = met;
  if (!why) return std::nullopt;
  if (was_summed) {
    // All groups refuse. The ranks of this one have read the outputs of each other already. None of
    // them may change these before all have: the refusal on this level makes sure of that.
    serial(caller, until, [&] { near_.core().take_back(state.number); });
    publish_on(near_, why, 0);
    static_cast<void>(finish_level(near_, sums, {}));
  }
  return answer(own_refusal ? own_refusal : why);
}

PEERBUS_INLINE void relay_engine::reopen(ticket rows, const receive_options& options,
                                         deadline until) {
  const lane caller = options.as;
  serial("reopen", caller, until, [&] {
    require("reopen", options.waited);
    static_cast<void>(state_of("reopen", rows, stage::returned));
  });
  // The far level first: no rank then reads the sums of its group any more when the near level,
  // which all ranks of the group await, lets them be written anew.
  for (level* const this_level : {&far_, &near_}) {
    const level_waits waits{*this_level, of_lane_0(options.waited, caller)};
    this_level->core().reopen(rows, {.as = caller, .waited = waits.own()}, until);
  }
}

PEERBUS_INLINE relay_engine::batch_state& relay_engine::state_of(std::string_view doing,
                                                                 ticket rows, stage expected) {
  static_cast<void>(near_.parts->batches.behind(doing, exchange_, rows, expected));
  batch_state& state = states_.of(rows.number);
  if (state.number != rows.number || state.reached != progress::received)
    throw error{errc::invalid_argument,
                peerbus::detail::concat(doing, " was given the rows of dispatch ", rows.number,
                                        ", which dispatch ", state.number, " has replaced")};
  return state;
}

PEERBUS_INLINE refusal relay_engine::objection_to_sum(const batch_state& state,
                                                      const combine_sum& wanted) {
  const bool by_rank = near_.parts->batches.at(state.number).leaving.geometry().by_rank;
  return check_sum(far_.parts->batches.at(state.number).leaving, config_.hidden, wanted,
                   {.by_rank = by_rank, .relayed = !config_.weights_at_combine});
}

}  // namespace peerbus::moe::detail
