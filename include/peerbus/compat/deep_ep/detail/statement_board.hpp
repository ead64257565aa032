// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <peerbus/bootstrap/activity.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/communicator/any_window.hpp>
#include <peerbus/communicator/communicator.hpp>
#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/compat/deep_ep/detail/call_statement.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::deep_ep::detail {

/// The statements of all ranks in the latest round. Each rank writes its own statement into the
/// memory of all other ranks.
///
/// A statement is overwritten by its rank's second next statement. All ranks have read it by then,
/// because each rank waits for all statements of a round and reads them before it makes its next
/// one.
class statement_board {
 public:
  /// Makes the board of the calls named `title`. Collective. `comm` must outlive it. Each rank also
  /// has `words` words that it may raise at its peers (`raise`).
  /// Throws: as `communicator::make_window`.
  template <transport Transport>
  statement_board(communicator<Transport>& comm, std::string_view title, std::size_t words,
                  deadline until)
      : title_{title},
        group_{comm},
        view_{comm.view().number()},
        window_{make_any_window(
            comm, {.bytes = 2 * comm.size() * entry_bytes, .signals = (1 + words) * comm.size()},
            until)} {}

  [[nodiscard]] rank_group& group() const noexcept { return group_; }

  /// Returns the statement of `peer` in the next round, if it has come.
  [[nodiscard]] std::optional<call_statement> next(rank_id peer) const noexcept {
    if (window_->value_at(group_.rank(), signal_of(peer)) <= round_) return std::nullopt;
    return read(peer, round_ + 1);
  }
  /// Returns the statement of `rank` in the latest round.
  [[nodiscard]] call_statement latest(rank_id rank) const noexcept { return read(rank, round_); }

  /// Carries out a round: sends `own` to all ranks, and waits for the statements of all ranks.
  /// Throws: `error` that names the missing ranks. The communicator is then poisoned.
  void exchange(const call_statement& own, deadline until) {
    group_.require_healthy(title_, view_);
    ++round_;
    const std::size_t offset = entry_at(group_.rank(), round_);
    std::memcpy(window_->local() + offset, &own, sizeof own);
    for (const rank_id peer : group_.peers())
      require(window_->put(peer, offset, std::span{window_->local() + offset, sizeof own}));
    require(window_->signal_each(group_.peers(), signal_of(group_.rank()), round_));
    const membership& members = *group_.members();
    wait_ = members.begin_wait({.operation = group_operation::call_agreement, .number = round_});
    for (const rank_id peer : group_.peers())
      require(window_->wait_at(group_.rank(), signal_of(peer), round_, until, peer));
    members.end_wait(wait_, {.epoch = round_});
  }

  /// Continues in the present view of the group. Ends the rounds of the earlier view, and gives
  /// later rounds higher numbers.
  void resume() noexcept {
    view_ = group_.view().number();
    round_ = view_ << 32U;
  }

  /// Raises this rank's word `word` to at least `value` at all peers.
  /// Throws: as `exchange`.
  void raise(std::size_t word, std::uint64_t value) {
    require(window_->signal_each(group_.peers(), word_of(group_.rank(), word), value));
  }
  /// Returns the latest value of the word `word` of `peer` that has arrived at this rank.
  [[nodiscard]] std::uint64_t word(rank_id peer, std::size_t word) const noexcept {
    return window_->value_at(group_.rank(), word_of(peer, word));
  }

 private:
  static constexpr std::size_t entry_bytes = align_up(sizeof(call_statement), cache_line_bytes);

  [[nodiscard]] static signal_id signal_of(rank_id rank) noexcept {
    return static_cast<signal_id>(rank.index());
  }
  [[nodiscard]] signal_id word_of(rank_id rank, std::size_t word) const noexcept {
    return static_cast<signal_id>((1 + word) * group_.size() + rank.index());
  }
  [[nodiscard]] std::size_t entry_at(rank_id rank, std::uint64_t round) const noexcept {
    return (round % 2 * group_.size() + rank.index()) * entry_bytes;
  }
  [[nodiscard]] call_statement read(rank_id rank, std::uint64_t round) const noexcept {
    call_statement entry;
    std::memcpy(&entry, window_->local() + entry_at(rank, round), sizeof entry);
    return entry;
  }
  void require(errc code) {
    if (code == errc::ok) return;
    const auto round_of = [this](rank_id peer) {
      return window_->value_at(group_.rank(), signal_of(peer));
    };
    std::vector<rank_id> awaited(group_.peers().begin(), group_.peers().end());
    std::erase_if(awaited, [&](rank_id peer) { return round_of(peer) >= round_; });
    group_.fail_waiting(
        code,
        concat(title_, ": waited ", peerbus::detail::describe_elapsed(wait_),
               " to agree on arguments that have changed, or that a rank refuses; missing "),
        awaited,
        [&](rank_id peer) { return concat("round ", round_of(peer), ", expected ", round_); });
  }

  std::string_view title_;
  rank_group& group_;
  std::uint64_t view_;
  std::unique_ptr<any_window> window_;
  std::uint64_t round_ = 0;  ///< rounds of statements so far
  peerbus::detail::activity_line::begun wait_;
};

}  // namespace peerbus::deep_ep::detail
