// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include <peerbus/communicator/communicator.hpp>
#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/compat/deep_ep/detail/agreeing_channels.hpp>
#include <peerbus/compat/deep_ep/detail/call_key.hpp>
#include <peerbus/compat/deep_ep/detail/call_statement.hpp>
#include <peerbus/compat/deep_ep/detail/started_calls.hpp>
#include <peerbus/compat/deep_ep/detail/statement_board.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/wait_watch.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::deep_ep::detail {

/// The agreement of the ranks on the arguments of their collective calls. It finds calls for which
/// ranks have given different arguments, and makes all ranks refuse them.
///
/// Calls with different keys use different exchanges, so that ranks with different keys would wait
/// for each other in different places. Nothing is sent for a call whose key is that of the previous
/// call: the exchange itself is the agreement. A rank whose key has changed, or that refuses its
/// own arguments, first states that to all ranks and waits for the statements of all. A rank that
/// has begun the call finds these statements while it waits in the exchange (`look`), and states
/// the operation that it has begun. All ranks then have the same statements, and decide the same.
/// If the call is refused, each rank refuses the operations that other ranks have begun and this
/// rank has not, so that the exchanges stay in step.
///
/// Calls with equal keys may still differ, by their handles. Ranks that wait for each other in
/// different operations of one call find that out too (`started_calls`), and state the operations
/// that they have begun.
///
/// The channel of a call may be too small for the tokens of one rank. That rank states the room
/// that it needs. The operations that other ranks have begun in that channel are then refused, and
/// all ranks make the call again in a larger one (`take_growth`), where it counts as another call.
class call_agreement final : public moe::wait_watch {
 public:
  /// Makes the agreement of the calls with `names`. Collective. `comm` and `channels` must outlive
  /// it.
  /// Throws: as `communicator::make_window`.
  template <transport Transport>
  call_agreement(communicator<Transport>& comm, const call_names& names, key_parts parts,
                 agreeing_channels& channels, deadline until)
      : names_{names},
        parts_{parts},
        channels_{channels},
        board_{comm, names.dispatch, started_calls::words, until} {}

  /// Sets `recover`. An operation that fails because a rank is gone goes on if `recover` returns
  /// true.
  void recover_by(std::function<bool(const error&)> recover) { recover_ = std::move(recover); }
  /// Returns whether the remaining ranks have gone on after `problem`.
  [[nodiscard]] bool recovers_from(const error& problem) const {
    return recover_ && recover_(problem);
  }
  /// Continues in the present view of the group. Forgets all statements about earlier calls, and
  /// gives later calls higher numbers. Operations that go on must be begun again.
  void resume() noexcept;

  /// Counts the next collective call.
  void begin() noexcept { ++calls_; }
  /// Returns the number of the current call. The same on all ranks.
  [[nodiscard]] std::uint64_t number() const noexcept { return calls_; }

  /// Requires that all ranks give `key` to the current call. Returns the largest `room` of the
  /// ranks that have not begun the call. `has_channel` states whether calls of that key have memory
  /// with room for `room` tokens of this rank. Communicates only if it is false, or if `key` is not
  /// the key of the previous call.
  /// Throws, on all ranks: `error` mismatch if keys differ, refused if a rank refuses its own
  /// arguments.
  std::uint64_t agree(const call_key& key, bool has_channel, const std::optional<deadline>& until,
                      std::uint64_t room = 0);
  /// Returns the room that a channel needs for the current call, if the ranks have refused this
  /// rank's operation only because its channel is too small for another rank. Otherwise returns
  /// nothing.
  [[nodiscard]] std::optional<std::uint64_t> take_growth() noexcept {
    const auto [call, room] = std::exchange(growth_, {});
    return call == calls_ && room != 0 ? std::optional{room} : std::nullopt;
  }
  /// Calls `check()` and returns its result. If it throws an `error`, all ranks refuse the current
  /// call, which this rank must not have begun, and this rank throws that error.
  template <class Check>
  decltype(auto) or_refuse(const std::optional<deadline>& until, Check&& check) {
    try {
      return std::forward<Check>(check)();
    } catch (const error& why) {
      refuse(why, until);
      throw;
    }
  }
  /// Makes all ranks refuse the current call because of `why`. This rank must not have carried it
  /// out.
  void refuse(const error& why, const std::optional<deadline>& until);
  /// Notes that the current call begins `operation`. Returns the number of the call.
  std::uint64_t started(started_operation operation) noexcept {
    operation.call = calls_;
    started_.add(operation);
    return calls_;
  }
  /// Begins `operation` for the next call, and calls `wait()`, which returns when all ranks have
  /// done the same. This rank then begins the operation again in that call.
  /// Throws: the error of the ranks if they refuse that call during the wait. This rank has then
  /// taken its part in the call.
  template <class Wait>
  void prepare(const started_operation& operation, const std::optional<deadline>& until,
               Wait&& wait) {
    begin();
    started(operation);
    std::forward<Wait>(wait)();
    if (auto known = take_known(calls_)) {
      const error why = known->why;
      refuse_noted(std::move(*known), until.value_or(default_deadline()));
      throw error{why};
    }
    started_.forget(calls_--);
  }
  /// Returns the error of `call` if the ranks have refused it after this rank had begun it, or
  /// nothing. Completes the operations of the call that this rank has refused.
  [[nodiscard]] std::optional<error> take_refusal(std::uint64_t call,
                                                  const std::optional<deadline>& until);

  /// Joins the statements of other ranks about a call that this rank has begun. Begins a round of
  /// statements if another rank has begun another operation for a call of this rank.
  PEERBUS_INLINE void look(deadline until) override;

 private:
  using operations = std::vector<started_operation>;

  /// The result of a round of statements.
  struct outcome {
    std::uint64_t call = 0;        ///< the first call that the statements are about
    std::optional<error> refused;  ///< the error of that call, if it is refused
    std::uint64_t room = 0;        ///< the largest room that the call needs
  };
  /// A call that ranks have refused after this rank had begun it.
  struct refusal {
    std::uint64_t call;
    error why;
    /// Operations of other ranks that this rank has refused.
    std::vector<started_operation> operations;
  };

  /// Returns the refusal of `call`, if there is one, and forgets it.
  [[nodiscard]] std::optional<refusal> take_known(std::uint64_t call);
  [[nodiscard]] deadline default_deadline() const noexcept {
    return board_.group().default_deadline();
  }
  [[nodiscard]] call_statement statement(std::uint64_t call) const noexcept {
    call_statement made;
    made.call = call;
    made.started = started_.all();
    return made;
  }

  /// Settles a call that this rank has not carried out. Operations that other ranks have begun for
  /// it are refused, because the call is refused or its channel is too small for this rank.
  [[nodiscard]] outcome settle(const call_statement& own, deadline until);
  /// Refuses the operations that ranks have begun for `call`, in an order that all ranks share, and
  /// returns them. Leaves out `own`, which this rank carries out.
  operations refuse_begun(std::uint64_t call, const started_operation& own, deadline until);
  /// Refuses the operation that this rank has noted for the current call, which the ranks have
  /// refused.
  void refuse_noted(refusal known, deadline until);
  void finish(const operations& refused, deadline until) {
    for (const started_operation& begun : refused) channels_.finish_refusal(begun, until);
  }
  void keep(const outcome& settled, operations refused) {
    latest_.reset();
    refusals_.push_back({settled.call, *settled.refused, std::move(refused)});
  }

  /// Sends `own` to all ranks, waits for the statements of all ranks, and returns the outcome,
  /// which is the same on all ranks.
  outcome exchange(const call_statement& own, deadline until);

  /// Returns the error of `call` if the statements of this round refuse it, or nothing.
  [[nodiscard]] std::optional<error> error_of(std::uint64_t call) const;

  call_names names_;
  key_parts parts_;
  agreeing_channels& channels_;
  statement_board board_;
  std::uint64_t calls_ = 0;         ///< collective calls so far
  std::optional<call_key> latest_;  ///< the key on which all ranks agreed for the previous dispatch
  std::pair<std::uint64_t, std::uint64_t> growth_;  ///< a call, and the room that it needs
  started_calls started_;
  std::function<bool(const error&)> recover_;
  std::vector<refusal> refusals_;  ///< in the order of the ranks' decisions
};

}  // namespace peerbus::deep_ep::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/compat/deep_ep/detail/call_agreement.ipp>  // IWYU pragma: keep
#endif
