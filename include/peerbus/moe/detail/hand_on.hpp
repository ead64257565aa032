// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include <peerbus/core/deadline.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/call_options.hpp>
#include <peerbus/moe/detail/batch.hpp>
#include <peerbus/moe/detail/batch_ring.hpp>
#include <peerbus/moe/detail/handshake.hpp>
#include <peerbus/moe/detail/post_office.hpp>
#include <peerbus/moe/expert_map.hpp>
#include <peerbus/moe/lane.hpp>
#include <peerbus/moe/received.hpp>
#include <peerbus/moe/refusal.hpp>
#include <peerbus/moe/road/batch_input.hpp>
#include <peerbus/moe/road/sum_copies.hpp>
#include <peerbus/moe/routing.hpp>
#include <peerbus/moe/set_view.hpp>

namespace peerbus::moe::detail {

/// The parts of the operations of an exchange, for one that is a level of another. They return
/// refusals, which the other level must learn, instead of throwing them. A refusal names the rank
/// whose input is bad in `relayed_for`, or leaves it to `refuser`. Other failures are thrown as by
/// the exchange.
struct hand_on {
  /// Begins a dispatch, or refuses it because of `known`, and then waits for all ranks. Returns the
  /// refusal of this rank. One lane calls it, and the others only `advance`.
  template <class Exchange>
  static refusal begin(Exchange& level, const batch_input& input, const routing& route,
                       const dispatch_options& options, const refusal& known, deadline until) {
    return level.core_.begin_dispatch(input, route, options, known, until);
  }
  /// Sends the rows of all batches whose rows may leave. All lanes call it.
  template <class Exchange>
  static void advance(Exchange& level, lane as, deadline until) {
    level.core_.advance(nullptr, as, until);
  }

  /// Tells all ranks that this rank refuses dispatch `number`, the next one of this level or a
  /// later. Does not wait. `skip` then uses up the number when it is the next one.
  template <class Exchange>
  static void refuse_ahead(Exchange& level, std::uint64_t number, const refusal& why) {
    batch& refused = batches(level).at(number);
    const auto this_step = dispatch_step(level, number);
    handshake::give_up(level.core_.post(), refused, this_step);
    handshake::post(level.core_.post(), refused, this_step, {}, why);
  }
  /// Uses up the number of the next dispatch.
  template <class Exchange>
  static void skip(Exchange& level) noexcept {
    batches(level).skip();
  }
  /// Waits until all ranks have learnt of the refusal of dispatch `number`, as they have called
  /// that dispatch too.
  template <class Exchange>
  static void await_called(Exchange& level, std::uint64_t number, deadline until) {
    level.core_.post().await_all(dispatch_step(level, number), until);
  }

  /// Does `dispatch_recv`. Returns the rows, or nothing and the refusal in `refused`.
  template <class Exchange>
  static std::optional<typename Exchange::received_type> receive(
      Exchange& level, std::uint64_t number, const receive_options& options, deadline until,
      std::optional<refusal_of>& refused) {
    refused = level.receive({number, &level}, options, until);
    return refused ? std::nullopt : level.arrived_;
  }

  /// Does `combine_send`, or refuses the combine because of `known`.
  template <class Exchange>
  static void publish(const char* doing, Exchange& level,
                      const typename Exchange::received_type& rows, const refusal& known, lane as,
                      deadline until) {
    level.core_.begin_combine(doing, rows.ticket(), {.as = as}, until,
                              [&](const batch&) { return known; });
    level.core_.advance(nullptr, as, until);
  }

  /// Does `combine_recv` after all checks. Returns the refusal, if any. All ranks may then combine
  /// the batch again.
  template <class Exchange>
  static std::optional<refusal_of> sum(Exchange& level,
                                       const typename Exchange::received_type& rows,
                                       const combine_sum& wanted, lane as, deadline until,
                                       std::span<std::int64_t> waited) {
    return level.core_.finish_combine(rows.ticket(), wanted, as, until, waited);
  }

  /// Makes a combined batch one that all ranks may combine again.
  template <class Exchange>
  static void take_back(Exchange& level, std::uint64_t number) {
    batches(level).at(number).reached = stage::received;
  }

  /// Throws: `error` invalid_argument unless `rows` are those of a batch in state `expected`.
  template <class Exchange>
  static auto& behind(std::string_view doing, Exchange& level,
                      const typename Exchange::received_type& rows, stage expected) {
    return batches(level).behind(doing, &level, rows.ticket(), expected);
  }
  /// Throws: `error` invalid_argument unless dispatch `number` may use its set.
  template <class Exchange>
  static void require_free(Exchange& level, std::uint64_t number) {
    batches(level).require_free(number);
  }
  /// Returns the batch in the set that dispatch `number` uses.
  template <class Exchange>
  static const batch& batch_of(Exchange& level, std::uint64_t number) {
    return batches(level).at(number);
  }
  /// Returns the memory of dispatch `number` at this rank.
  template <class Exchange>
  static set_view set(const Exchange& level, std::uint64_t number) {
    return {level.map_, level.window_.local(), number % level.config_.in_flight};
  }
  /// Returns the map of experts, to change it before the first dispatch.
  template <class Exchange>
  static expert_map& experts(Exchange& level) {
    return batches(level).shared_experts();
  }

 private:
  /// Returns the step in which counts and refusals of dispatch `number` travel.
  template <class Exchange>
  static post_office::step dispatch_step(Exchange& level, std::uint64_t number) {
    const batch& called = batches(level).at(number);
    return {"dispatch", number, batches(level).set_of(called), handshake::decides(called), number};
  }
  template <class Exchange>
  static batch_ring& batches(Exchange& level) noexcept {
    return level.plans_.batches;
  }
};

}  // namespace peerbus::moe::detail
