// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/communicator/any_window.hpp>
#include <peerbus/communicator/communicator.hpp>
#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/compat/deep_ep/detail/agreeing_channels.hpp>
#include <peerbus/compat/deep_ep/detail/call_key.hpp>
#include <peerbus/compat/deep_ep/detail/call_statement.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
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
/// it has begun. Now all ranks know the same, and decide the same. If the call is refused, the
/// ranks that have not begun it refuse the operations that the others have begun, so that the
/// exchanges stay in step.
///
/// The channel of a call may be too small for the tokens of one rank. That rank states the room
/// that it needs. The operations that others have begun in that channel are then refused, and all
/// ranks make the call again in a larger one (`take_growth`).
///
/// A statement is overwritten by the second next one of its rank. All ranks have read it by then,
/// because each rank makes its next statement after it has read all, and waits for all.
class call_agreement final : public moe::wait_watch {
 public:
  /// Makes the agreement of the calls named `title`. Collective. `comm` and `channels` outlive it.
  /// Throws: as `communicator::make_window`.
  template <transport Transport>
  call_agreement(communicator<Transport>& comm, std::string_view title, key_parts parts,
                 agreeing_channels& channels, deadline until)
      : title_{title},
        parts_{parts},
        channels_{channels},
        group_{comm},
        window_{make_any_window(
            comm, {.bytes = 2 * comm.size() * entry_bytes, .signals = comm.size()}, until)} {}

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
    const outcome settled = settle(own, until.value_or(group_.default_deadline()));
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
  /// Makes all ranks refuse the current call, which this rank has not begun, because of `why`.
  void refuse(const error& why, const std::optional<deadline>& until) {
    call_statement own = statement(calls_);
    own.refuse(why);
    static_cast<void>(settle(own, until.value_or(group_.default_deadline())));
  }
  /// Notes that the current call begins an operation of a channel. Returns the number of the call.
  std::uint64_t started(std::uint64_t channel, std::uint64_t number, started_operation::kind what,
                        std::uint64_t bound = 0) noexcept {
    started_[calls_ % started_.size()] = {calls_, channel, number, bound, what};
    return calls_;
  }
  /// Returns the error of `call` if ranks have refused it after this rank had begun it.
  [[nodiscard]] std::optional<error> take_refusal(std::uint64_t call) {
    const auto found = std::find_if(refusals_.begin(), refusals_.end(),
                                    [&](const auto& known) { return known.first == call; });
    if (found == refusals_.end()) return std::nullopt;
    error taken = std::move(found->second);
    refusals_.erase(found);
    return taken;
  }

  /// Joins the statements of other ranks about a call that this rank has begun.
  void look(deadline until) override {
    std::optional<std::uint64_t> call;
    for (const rank_id peer : group_.peers())
      if (window_->value_at(group_.rank(), signal_of(peer)) > round_) {
        const std::uint64_t stated = read(peer, round_ + 1).call;
        call = std::min(call.value_or(stated), stated);
      }
    if (!call || *call > calls_) return;
    const outcome settled = exchange(statement(*call), until);
    if (settled.refused)
      keep(settled.call, *settled.refused);
    else
      growth_ = {settled.call, settled.room};
  }

 private:
  static constexpr std::size_t entry_bytes = align_up(sizeof(call_statement), cache_line_bytes);

  /// The result of a round of statements.
  struct outcome {
    std::uint64_t call = 0;        ///< the first call that they are about
    std::optional<error> refused;  ///< its error, if it is refused
    std::uint64_t room = 0;        ///< the largest room that is needed for it
  };

  [[nodiscard]] static signal_id signal_of(rank_id rank) noexcept {
    return static_cast<signal_id>(rank.index());
  }
  [[nodiscard]] std::size_t entry_at(rank_id rank, std::uint64_t round) const noexcept {
    return (round % 2 * group_.size() + rank.index()) * entry_bytes;
  }
  [[nodiscard]] call_statement read(rank_id rank, std::uint64_t round) const noexcept {
    call_statement entry;
    std::memcpy(&entry, window_->local() + entry_at(rank, round), sizeof entry);
    return entry;
  }
  [[nodiscard]] call_statement statement(std::uint64_t call) const noexcept {
    call_statement made;
    made.call = call;
    made.started = started_;
    return made;
  }

  /// Settles a call that this rank has not begun. If other ranks have begun it, what they have
  /// begun is refused: the call is refused, or its channel is too small for this rank.
  [[nodiscard]] outcome settle(const call_statement& own, deadline until) {
    for (;;) {
      outcome settled = exchange(own, until);
      if (settled.call != own.call) {  // An earlier call, which this rank has begun.
        if (settled.refused) keep(settled.call, *settled.refused);
        continue;
      }
      if (settled.refused) latest_.reset();
      std::vector<started_operation> refused_operations;
      for (const rank_id rank : group_.ranks()) {
        const auto begun = read(rank, round_).started_for(own.call);
        if (begun.what == started_operation::kind::none ||
            std::find(refused_operations.begin(), refused_operations.end(), begun) !=
                refused_operations.end())
          continue;
        refused_operations.push_back(begun);
      }
      for (const started_operation& begun : refused_operations) channels_.refuse(begun, until);
      return settled;
    }
  }

  void keep(std::uint64_t call, const error& refused) {
    latest_.reset();
    refusals_.emplace_back(call, refused);
  }

  /// Tells all ranks `own`, waits for the statements of all and decides. All ranks get the same
  /// outcome.
  outcome exchange(const call_statement& own, deadline until) {
    group_.require_healthy(title_);
    ++round_;
    const std::size_t offset = entry_at(group_.rank(), round_);
    std::memcpy(window_->local() + offset, &own, sizeof own);
    for (const rank_id peer : group_.peers())
      require(window_->put(peer, offset, std::span{window_->local() + offset, sizeof own}));
    require(window_->signal_each(group_.peers(), signal_of(group_.rank()), round_));
    for (const rank_id peer : group_.peers())
      require(window_->wait_at(group_.rank(), signal_of(peer), round_, until, peer));

    std::uint64_t first = own.call;
    for (const rank_id rank : group_.ranks()) first = std::min(first, read(rank, round_).call);
    for (const rank_id rank : group_.ranks())
      if (const auto entry = read(rank, round_); entry.call != first && !entry.remembers(first))
        group_.fail(errc::mismatch,
                    peerbus::detail::concat(title_, ": ranks differ in a call after which ", rank,
                                            " has made ", entry.call - first,
                                            " more, expected hooks to be called before that"));
    std::uint64_t room = 0;
    for (const rank_id rank : group_.ranks())
      if (const auto entry = read(rank, round_); entry.call == first)
        room = std::max(room, entry.room);
    return {first, error_of(first), room};
  }
  void require(errc code) {
    if (code == errc::ok) return;
    std::string text = peerbus::detail::concat(
        title_,
        ": waited to agree on arguments that have changed, or that a rank refuses; missing");
    for (const rank_id peer : group_.peers())
      if (window_->value_at(group_.rank(), signal_of(peer)) < round_)
        text += peerbus::detail::concat(" ", peer);
    if (const auto gone = group_.missing(); !gone.empty()) text += "; " + gone;
    group_.fail(code, text);
  }

  /// Returns the error of `call`, if the statements of this round refuse it.
  [[nodiscard]] std::optional<error> error_of(std::uint64_t call) const {
    using kind = started_operation::kind;
    std::optional<call_key> first_key;
    bool first_combines = false;
    std::optional<error> found;
    for (const rank_id rank : group_.ranks()) {
      const call_statement entry = read(rank, round_);
      if (entry.call == call && entry.objection != errc::ok)
        return error{errc::refused,
                     peerbus::detail::concat("the call did not happen, because ", rank,
                                             " was given bad arguments: ", entry.refusal())};
      const auto begun = entry.started_for(call);
      const bool combines = begun.what == kind::combine;
      const call_key key = begun.what == kind::none ? entry.key : channels_.key_of(begun);
      if (!first_key) {
        first_key = key;
        first_combines = combines;
      }
      if (found) continue;
      found = difference(title_, parts_, *first_key, key, rank);
      if (!found && combines != first_combines)
        found = error{errc::mismatch,
                      peerbus::detail::concat(combines ? rank : rank_id{0}, " combines but ",
                                              combines ? rank_id{0} : rank,
                                              " dispatches, expected the same call on all ranks")};
    }
    return found;
  }

  std::string_view title_;
  key_parts parts_;
  agreeing_channels& channels_;
  rank_group& group_;
  std::unique_ptr<any_window> window_;
  std::uint64_t calls_ = 0;         ///< collective calls so far
  std::uint64_t round_ = 0;         ///< rounds of statements so far
  std::optional<call_key> latest_;  ///< on which all ranks agreed for the previous dispatch
  std::pair<std::uint64_t, std::uint64_t> growth_;  ///< a call, and the room that it needs
  std::array<started_operation, call_statement::remembered_calls> started_{};
  std::vector<std::pair<std::uint64_t, error>> refusals_;  ///< of calls that this rank has begun
};

}  // namespace peerbus::deep_ep::detail
