// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/call_options.hpp>
#include <peerbus/moe/detail/batch.hpp>
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
  /// A refusal, and the rank of the exchange that told it.
  struct answer {
    refusal why{};
    rank_id refuser{0};
  };

  /// Begins a dispatch, or refuses it because of `known`, and then waits for all ranks. Returns the
  /// refusal of this rank. One lane calls it, and the others only `advance`.
  template <class Exchange>
  static refusal begin(Exchange& level, const batch_input<typename Exchange::token>& input,
                       const routing& route, const dispatch_options& options, const refusal& known,
                       deadline until) {
    return level.begin_dispatch(input, route, options, known, until);
  }
  /// Sends the rows of all batches whose rows may leave. All lanes call it.
  template <class Exchange>
  static void advance(Exchange& level, lane as, deadline until) {
    level.advance(nullptr, as, until);
  }

  /// Tells all ranks that this rank refuses dispatch `number`, the next one of this level or a
  /// later. Does not wait. `skip` then uses up the number when it is the next one.
  template <class Exchange>
  static void refuse_ahead(Exchange& level, std::uint64_t number, const refusal& why) {
    auto& batch = level.batches_.at(number);
    const auto this_step = dispatch_step(level, number);
    Exchange::handshake::give_up(level.post_, batch, this_step);
    Exchange::handshake::post(level.post_, batch, this_step, {}, why);
  }
  /// Uses up the number of the next dispatch.
  template <class Exchange>
  static void skip(Exchange& level) noexcept {
    level.batches_.skip();
  }
  /// Waits until all ranks have learnt of the refusal of dispatch `number`, as they have called
  /// that dispatch too.
  template <class Exchange>
  static void await_called(Exchange& level, std::uint64_t number, deadline until) {
    level.post_.await_all(dispatch_step(level, number), until);
  }

  /// Does `dispatch_recv`. Returns the rows, or nothing and the refusal in `refused`.
  template <class Exchange>
  static std::optional<typename Exchange::received_type> receive(Exchange& level,
                                                                 std::uint64_t number,
                                                                 const receive_options& options,
                                                                 answer& refused) {
    try {
      return level.dispatch_recv({number, &level}, options);
    } catch (const error& problem) {
      if (problem.code() != errc::refused) throw;
      const auto& batch = level.batches_.at(number);
      refused = {batch.refused, batch.refused_by};
      return std::nullopt;
    }
  }

  /// Does `combine_send`, or refuses the combine because of `known`.
  template <class Exchange>
  static void publish(std::string_view doing, Exchange& level,
                      const typename Exchange::received_type& rows, const refusal& known, lane as,
                      deadline until) {
    level.begin_combine(doing, rows, publish_options{.as = as}, until,
                        [&](auto&) { return known; });
    level.advance(nullptr, as, until);
  }

  /// Does `combine_recv` after all checks. Returns the refusal, if any. All ranks may then combine
  /// the batch again.
  template <class Exchange>
  static answer sum(Exchange& level, const typename Exchange::received_type& rows,
                    const combine_sum& wanted, lane as, deadline until,
                    std::span<std::int64_t> waited) {
    try {
      level.finish_combine(rows, wanted, as, until, waited);
      return {};
    } catch (const error& problem) {
      if (problem.code() != errc::refused && problem.code() != errc::invalid_argument) throw;
      auto& batch = level.batches_.at(rows.ticket().number);
      if (batch.refused) return {batch.refused, level.comm_.rank()};
      const auto found = level.post_.refused(level.step_of(batch, Exchange::outputs));
      if (!found) throw;
      return {found->why, found->rank};
    }
  }

  /// Makes a combined batch one that all ranks may combine again.
  template <class Exchange>
  static void take_back(Exchange& level, std::uint64_t number) {
    level.batches_.at(number).reached = stage::received;
  }

  /// Throws: `error` invalid_argument unless `rows` are those of a batch in state `expected`.
  template <class Exchange>
  static auto& behind(std::string_view doing, Exchange& level,
                      const typename Exchange::received_type& rows, stage expected) {
    return level.batches_.behind(doing, &level, rows, expected);
  }
  /// Throws: `error` invalid_argument unless dispatch `number` may use its set.
  template <class Exchange>
  static void require_free(Exchange& level, std::uint64_t number) {
    level.batches_.require_free(number);
  }
  /// Returns the batch in the set that dispatch `number` uses.
  template <class Exchange>
  static auto& batch(Exchange& level, std::uint64_t number) {
    return level.batches_.at(number);
  }
  /// Returns the memory of dispatch `number` at this rank.
  template <class Exchange>
  static set_view set(const Exchange& level, std::uint64_t number) {
    return {level.map_, level.memory_.local().data(), number % level.config_.in_flight};
  }
  /// Returns the map of experts, to change it before the first dispatch.
  template <class Exchange>
  static expert_map& experts(Exchange& level) {
    return level.batches_.shared_experts();
  }

 private:
  /// Returns the step in which counts and refusals of dispatch `number` travel.
  template <class Exchange>
  static typename Exchange::step dispatch_step(Exchange& level, std::uint64_t number) {
    const auto& batch = level.batches_.at(number);
    return {"dispatch", number, level.batches_.set_of(batch), Exchange::handshake::decides(batch),
            number};
  }
};

}  // namespace peerbus::moe::detail
