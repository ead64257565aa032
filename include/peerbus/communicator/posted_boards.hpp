// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include <peerbus/bootstrap/bulletin.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/communicator/agreement_board.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::detail {

/// The boards of a `view_agreement` for ranks that share no memory: each rank has a copy of all
/// boards, and posts what it writes on its own one to the copies of the others. A copy may be
/// behind, but shows what its owner wrote in the order of writing, and all that arrived before the
/// owner is known to have ended.
///
/// If a rank ends while it posts, some may have its last contributions, of which two may be
/// outstanding, and others not. So each rank that learns of an end, or is about to post a set with
/// it, posts the last contributions that it has of all ranks that have ended, as far as it has not
/// before. If all ranks that live have done so for all that have ended, and one of them does not
/// have a contribution then, none of them has: who has it had it from a rank that ended, and posted
/// it after the end of that one. Who leaves posts before what it has of all ranks, as far as others
/// may lack it. tests/model/posted_gather.pml checks that.
///
/// Threads: posts from one thread at a time; the copies are brought up to date by any thread that
/// asks for the state of a rank.
class posted_boards {
 public:
  /// Makes the boards of the ranks of `members`, which hears of the ranks that others name in their
  /// sets. Does not wait for the others, who make theirs in the same order before any of them
  /// posts.
  posted_boards(std::shared_ptr<bulletin> by, std::shared_ptr<membership> members);
  posted_boards(const posted_boards&) = delete;
  posted_boards& operator=(const posted_boards&) = delete;
  /// Posts the last contributions of all, as others may have to know what this rank has had.
  ~posted_boards();

  /// Returns the copies: [ranks].
  [[nodiscard]] const std::vector<std::byte*>& boards() const noexcept { return boards_; }

  ///@{
  /// Tells the others what this rank has written on its board: as `agreement_board::write` and
  /// `give`. Before a set this rank tells what it has of each rank of it.
  /// Throws: as `bulletin::publish`.
  void post_set(std::uint64_t revision, std::uint64_t view, std::span<const std::uint64_t> words);
  void post_contribution(std::uint64_t turn, std::uint64_t what, std::span<const std::byte> bytes);
  ///@}

  /// Returns whether `teller` has posted what it had when it learned of the end of `ended`, or has
  /// posted all and left.
  [[nodiscard]] bool has_told(rank_id teller, rank_id ended) const noexcept {
    // order: acquire; pairs with the release in `take`, so that what it had is on the copy.
    return told_[teller.index() * boards_.size() + ended.index()].load(std::memory_order_acquire);
  }

  /// Writes what a message of `from` says on the copies. Does not trust the sender: what does not
  /// follow on what a copy has is dropped. For the bulletin, and for tests.
  void take(rank_id from, std::span<const std::byte> message) noexcept;

 private:
  using messages = std::vector<std::vector<std::byte>>;

  /// Adds the last contributions of `owner` that others may lack and that this rank has not told.
  void add_contributions(rank_id owner, messages& told);
  /// Returns what this rank has to say when it learns of the end of `ended`.
  [[nodiscard]] messages tell_contributions(rank_id ended);
  [[nodiscard]] bool is_known_to_have_ended(rank_id rank) const noexcept {
    return std::find(ended_.begin(), ended_.end(), rank) != ended_.end();
  }

  struct alignas(cache_line_bytes) line {
    std::byte bytes[cache_line_bytes];
  };

  std::shared_ptr<bulletin> by_;
  std::shared_ptr<membership> members_;
  rank_id own_;
  std::vector<line> memory_;
  std::vector<std::byte*> boards_;
  std::unique_ptr<std::atomic<bool>[]> told_;  ///< [tellers][ranks]
  std::mutex taking_;           ///< guards what follows, and what `take` writes against who posts
  std::vector<rank_id> ended_;  ///< those that this rank takes for gone
  std::vector<std::uint64_t> told_turns_;  ///< [ranks]: the last turn that this rank told of
  std::uint32_t channel_;
};

}  // namespace peerbus::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/communicator/posted_boards.ipp>  // IWYU pragma: keep
#endif
