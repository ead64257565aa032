// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include <peerbus/compat/deep_ep/detail/call_statement.hpp>
#include <peerbus/compat/deep_ep/detail/statement_board.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::deep_ep::detail {

/// The operations that this rank has begun for its latest calls. A rank that has waited for some
/// milliseconds tells its peers the operations that it has begun, and compares them with the
/// operations of its peers. If ranks have begun different operations for one call, none of the
/// operations can end, so that all ranks wait until they find the difference.
class started_calls {
 public:
  static constexpr std::size_t remembered = call_statement::remembered_calls;
  /// The number of words of `statement_board` that a rank uses: one for each remembered call.
  static constexpr std::size_t words = remembered;

  /// Adds the operation of a call.
  void add(const started_operation& begun) noexcept {
    operations_[begun.call % remembered] = begun;
    polls_ = 0;
  }
  /// Forgets the operation of `call`, which all ranks have prepared and may begin again.
  void forget(std::uint64_t call) noexcept { operations_[call % remembered] = {}; }
  [[nodiscard]] const std::array<started_operation, remembered>& all() const noexcept {
    return operations_;
  }
  /// Returns the operation of `call`. It must be one of the latest calls, and have begun an
  /// operation.
  [[nodiscard]] const started_operation& of(std::uint64_t call) const noexcept {
    return operations_[call % remembered];
  }

  /// Returns the earliest call for which a peer has begun another operation than this rank. Returns
  /// it only if the previous poll found it too, because a peer may only be late. For use during a
  /// wait.
  /// Cost: one signal to each peer for each call, at most once.
  [[nodiscard]] std::optional<std::uint64_t> poll(statement_board& board) {
    constexpr std::size_t polls_before_telling = 4;  // About 15 ms after the wait began.
    if (++polls_ >= polls_before_telling) tell(board);
    const std::uint64_t differing = differing_call(board);
    const bool again = differing != 0 && differing == suspected_;
    suspected_ = differing;
    return again ? std::optional{differing} : std::nullopt;
  }
  /// Ends the comparison of calls up to `call`, on which the ranks have decided.
  void decided(std::uint64_t call) noexcept { decided_ = std::max(decided_, call); }

 private:
  /// Returns the word that stands for `begun`. Words grow with the number of the call. Operations
  /// that can be begun at the same time differ in the last bits of their words.
  [[nodiscard]] static std::uint64_t word_of(const started_operation& begun) noexcept {
    const std::uint64_t is_dispatch = begun.what == started_operation::kind::dispatch ? 1 : 0;
    return begun.call << 24U | is_dispatch << 23U | begun.channel % 128 << 16U |
           begun.number % 65536;
  }
  void tell(statement_board& board) {
    for (std::size_t i = 0; i < remembered; ++i) {
      const std::uint64_t word = word_of(operations_[i]);
      if (word <= told_[i]) continue;
      told_[i] = word;
      board.raise(i, word);
    }
  }
  /// Returns the earliest call for which a peer has told another operation, or 0.
  [[nodiscard]] std::uint64_t differing_call(const statement_board& board) const noexcept {
    std::uint64_t earliest = 0;
    for (std::size_t i = 0; i < remembered; ++i) {
      const started_operation& begun = operations_[i];
      if (begun.call <= decided_ || (earliest != 0 && begun.call > earliest)) continue;
      const std::uint64_t own = word_of(begun);
      for (const rank_id peer : board.group().peers()) {
        const std::uint64_t peer_word = board.word(peer, i);
        if (peer_word != own && peer_word >> 24U == begun.call) earliest = begun.call;
      }
    }
    return earliest;
  }

  std::array<started_operation, remembered> operations_{};
  /// The latest word of each operation that was sent to the other ranks.
  std::array<std::uint64_t, remembered> told_{};
  std::uint64_t decided_ = 0;
  std::uint64_t suspected_ = 0;  ///< the call that the previous poll has found
  std::size_t polls_ = 0;        ///< number of polls since the latest call
};

}  // namespace peerbus::deep_ep::detail
