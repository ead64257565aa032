// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/communicator/communicator.hpp>
#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/compat/deep_ep/detail/agreeing_channels.hpp>
#include <peerbus/compat/deep_ep/detail/call_key.hpp>
#include <peerbus/compat/deep_ep/detail/call_statement.hpp>
#include <peerbus/compat/deep_ep/detail/started_calls.hpp>
#include <peerbus/compat/deep_ep/detail/statement_board.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/wait_watch.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::deep_ep::detail {

/// Finds calls for which ranks have given different arguments, and makes all ranks refuse them.
///
/// Calls with different keys use different exchanges, so that ranks that differ would wait for each
/// other in different places. Nothing is sent for a call whose key is that of the call before: the
/// exchange itself is the agreement. A rank whose key has changed, or that refuses its own
/// arguments, first states that to all ranks and waits for the statements of all. A rank that has
/// begun the call finds these statements while it waits in the exchange (`look`), and states what
/// it has begun. Now all ranks know the same, and decide the same. If the call is refused, each
/// rank refuses the operations that others have begun and it has not, so that the exchanges stay in
/// step.
///
/// Calls with equal keys may still differ, by their handles. Ranks that wait for each other in
/// different operations of one call find that out too (`started_calls`), and state what they have
/// begun.
///
/// The channel of a call may be too small for the tokens of one rank. That rank states the room
/// that it needs. The operations that others have begun in that channel are then refused, and all
/// ranks make the call again in a larger one (`take_growth`), where it counts as another call.
class call_agreement final : public moe::wait_watch {
 public:
  /// Makes the agreement of the calls with `names`. Collective. `comm` and `channels` outlive it.
  /// Throws: as `communicator::make_window`.
  template <transport Transport>
  call_agreement(communicator<Transport>& comm, const call_names& names, key_parts parts,
                 agreeing_channels& channels, deadline until)
      : names_{names},
        parts_{parts},
        channels_{channels},
        board_{comm, names.dispatch, started_calls::words, until} {}

  /// Makes operations that fail as a rank is gone go on by `recover`, if it returns true.
  void recover_by(std::function<bool(const error&)> recover) { recover_ = std::move(recover); }
  /// Returns whether the ranks that are left have gone on after `problem`.
  [[nodiscard]] bool recovers_from(const error& problem) const {
    return recover_ && recover_(problem);
  }
  /// Goes on in the present view of the group. What ranks have stated of earlier calls is over, and
  /// calls that follow have higher numbers. Operations that go on are begun again.
  void resume() noexcept {
    board_.resume();
    calls_ = board_.group().view().number() << 32U;
    latest_.reset();
    growth_ = {};
    started_ = {};
    refusals_.clear();
  }

  /// Counts the next collective call.
  void begin() noexcept { ++calls_; }
  /// Returns the number of the current call. The same on all ranks.
  [[nodiscard]] std::uint64_t number() const noexcept { return calls_; }

  /// Returns if all ranks give `key` to the current call. `has_channel`: the memory for such calls
  /// is there, with room for `room` tokens of this rank. Communicates only if it is not, or if the
  /// key is not that of the previous call. Returns the largest `room` of the ranks that have not
  /// begun the call.
  /// Throws, on all ranks: `error` mismatch if keys differ, refused if a rank refuses its own
  /// arguments.
  std::uint64_t agree(const call_key& key, bool has_channel, const std::optional<deadline>& until,
                      std::uint64_t room = 0) {
    if (has_channel && latest_ == key) return room;
    call_statement own = statement(calls_);
    own.key = key;
    own.room = room;
    const outcome settled = settle(own, until.value_or(default_deadline()));
    if (settled.refused) throw error{*settled.refused};
    latest_ = key;
    return settled.room;
  }
  /// Returns the room that a channel needs for the current call, if the ranks have refused what
  /// this rank had begun only because its channel is too small for another rank.
  [[nodiscard]] std::optional<std::uint64_t> take_growth() noexcept {
    const auto [call, room] = std::exchange(growth_, {});
    return call == calls_ && room != 0 ? std::optional{room} : std::nullopt;
  }
  /// Returns what `check()` returns. If it throws an `error`, all ranks refuse the current call,
  /// which this rank has not begun, and this rank throws that error.
  template <class Check>
  decltype(auto) or_refuse(const std::optional<deadline>& until, Check&& check) {
    try {
      return std::forward<Check>(check)();
    } catch (const error& why) {
      refuse(why, until);
      throw;
    }
  }
  /// Makes all ranks refuse the current call, which this rank has not carried out, because of
  /// `why`.
  void refuse(const error& why, const std::optional<deadline>& until) {
    const deadline end = until.value_or(default_deadline());
    // The ranks may have refused it while this rank prepared the operation that it had noted.
    if (auto known = take_known(calls_)) return refuse_noted(std::move(*known), end);
    call_statement own = statement(calls_);
    own.refuse(why);
    static_cast<void>(settle(own, end));
  }
  /// Notes that the current call begins `operation`. Returns the number of the call.
  std::uint64_t started(started_operation operation) noexcept {
    operation.call = calls_;
    started_.add(operation);
    return calls_;
  }
  /// Calls `wait()`, which returns when all ranks have begun `operation` for the next call. This
  /// rank then begins it for that call once more. If the ranks refuse the call while this one
  /// waits, this was its part of it: throws their error.
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
  /// Returns the error of `call` if ranks have refused it after this rank had begun it. Completes
  /// what this rank has refused of it.
  [[nodiscard]] std::optional<error> take_refusal(std::uint64_t call,
                                                  const std::optional<deadline>& until) {
    auto found = take_known(call);
    if (!found) return std::nullopt;
    finish(found->operations, until.value_or(default_deadline()));
    return std::move(found->why);
  }

  /// Joins the statements of other ranks about a call that this rank has begun. Begins a round of
  /// statements if another rank has begun another operation for such a call.
  void look(deadline until) override {
    std::optional<std::uint64_t> call;
    for (const rank_id peer : board_.group().peers())
      if (const auto statement = board_.next(peer))
        call = std::min(call.value_or(statement->call), statement->call);
    if (!call) call = started_.poll(board_);
    if (!call || *call > calls_) return;
    const outcome settled = exchange(statement(*call), until);
    started_.decided(settled.call);
    if (settled.refused) {
      keep(settled, refuse_begun(settled.call, started_.of(settled.call), until));
    } else if (settled.room != 0) {
      growth_ = {++calls_, settled.room};
    }
  }

 private:
  using operations = std::vector<started_operation>;

  /// The result of a round of statements.
  struct outcome {
    std::uint64_t call = 0;        ///< the first call that they are about
    std::optional<error> refused;  ///< its error, if it is refused
    std::uint64_t room = 0;        ///< the largest room that is needed for it
  };
  /// A call that ranks have refused after this rank had begun it.
  struct refusal {
    std::uint64_t call;
    error why;
    std::vector<started_operation> operations;  ///< of others, which this rank has refused
  };

  /// Returns the refusal of `call` and forgets it, if there is one.
  [[nodiscard]] std::optional<refusal> take_known(std::uint64_t call) {
    const auto found = std::find_if(refusals_.begin(), refusals_.end(),
                                    [&](const auto& known) { return known.call == call; });
    if (found == refusals_.end()) return std::nullopt;
    refusal taken = std::move(*found);
    refusals_.erase(found);
    return taken;
  }
  [[nodiscard]] deadline default_deadline() const noexcept {
    return board_.group().default_deadline();
  }
  [[nodiscard]] call_statement statement(std::uint64_t call) const noexcept {
    call_statement made;
    made.call = call;
    made.started = started_.all();
    return made;
  }

  /// Settles a call that this rank has not carried out. If other ranks have begun it, what they
  /// have begun is refused: the call is refused, or its channel is too small for this rank.
  [[nodiscard]] outcome settle(const call_statement& own, deadline until) {
    for (;;) {
      outcome settled = exchange(own, until);
      if (settled.call != own.call) {  // An earlier call, which this rank carries out.
        if (settled.refused)
          keep(settled, refuse_begun(settled.call, started_.of(settled.call), until));
        continue;
      }
      if (settled.refused) latest_.reset();
      const operations refused = refuse_begun(settled.call, {}, until);
      finish(refused, until);
      if (!settled.refused && !refused.empty() && settled.room != 0) ++calls_;
      return settled;
    }
  }
  /// Refuses what ranks have begun for `call`, in an order that all ranks share, and returns it.
  /// Leaves out `own`, which this rank carries out.
  operations refuse_begun(std::uint64_t call, const started_operation& own, deadline until) {
    operations refused;
    for (const rank_id rank : board_.group().view().members()) {
      const auto begun = board_.latest(rank).started_for(call);
      if (begun.what != started_operation::kind::none && begun != own &&
          std::find(refused.begin(), refused.end(), begun) == refused.end())
        refused.push_back(begun);
    }
    for (const started_operation& begun : refused) channels_.refuse(begun, until);
    return refused;
  }
  /// Refuses the operation that this rank has noted for the current call, which the ranks have
  /// refused.
  void refuse_noted(refusal known, deadline until) {
    channels_.refuse(started_.of(calls_), until);
    known.operations.push_back(started_.of(calls_));
    finish(known.operations, until);
  }
  void finish(const operations& refused, deadline until) {
    for (const started_operation& begun : refused) channels_.finish_refusal(begun, until);
  }
  void keep(const outcome& settled, operations refused) {
    latest_.reset();
    refusals_.push_back({settled.call, *settled.refused, std::move(refused)});
  }

  /// Tells all ranks `own`, waits for the statements of all and decides. All ranks get the same
  /// outcome.
  outcome exchange(const call_statement& own, deadline until) {
    board_.exchange(own, until);
    rank_group& group = board_.group();
    std::uint64_t first = own.call;
    for (const rank_id rank : group.view().members())
      first = std::min(first, board_.latest(rank).call);
    std::uint64_t room = 0;
    for (const rank_id rank : group.view().members()) {
      const auto entry = board_.latest(rank);
      if (entry.call == first) room = std::max(room, entry.room);
      if (entry.call != first && !entry.remembers(first))
        group.fail(errc::mismatch,
                   peerbus::detail::concat(names_.dispatch, ": ranks differ in a call after which ",
                                           rank, " has made ", entry.call - first,
                                           " more, expected hooks to be called before that"));
    }
    return {first, error_of(first), room};
  }

  /// Returns the error of `call`, if the statements of this round refuse it.
  [[nodiscard]] std::optional<error> error_of(std::uint64_t call) const {
    std::optional<call_key> first_key;
    started_operation first_begun;
    std::optional<error> found;
    for (const rank_id rank : board_.group().view().members()) {
      const call_statement entry = board_.latest(rank);
      if (entry.call == call && entry.objection != errc::ok)
        return error{errc::refused,
                     peerbus::detail::concat("the call did not happen, because ", rank,
                                             " was given bad arguments: ", entry.refusal())};
      const auto begun = entry.started_for(call);
      const call_key key =
          begun.what == started_operation::kind::none ? entry.key : channels_.key_of(begun);
      if (!first_key) {
        first_key = key;
        first_begun = begun;
      }
      if (!found) found = detail::difference(names_.dispatch, parts_, *first_key, key, rank);
      if (!found) found = detail::difference(names_, first_begun, begun, rank);
    }
    return found;
  }

  call_names names_;
  key_parts parts_;
  agreeing_channels& channels_;
  statement_board board_;
  std::uint64_t calls_ = 0;         ///< collective calls so far
  std::optional<call_key> latest_;  ///< on which all ranks agreed for the previous dispatch
  std::pair<std::uint64_t, std::uint64_t> growth_;  ///< a call, and the room that it needs
  started_calls started_;
  std::function<bool(const error&)> recover_;
  std::vector<refusal> refusals_;  ///< in the order in which the ranks have decided
};

}  // namespace peerbus::deep_ep::detail
