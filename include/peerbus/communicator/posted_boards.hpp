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

/// The boards of a `view_agreement` for ranks that share no memory. Each rank has a copy of all
/// boards, and posts its writes to its own board to the copies of the others. A copy may be out of
/// date. It shows its owner's writes in their order, including all that arrived before the owner is
/// known to have ended.
///
/// If a rank ends while it posts, some ranks may have its last contributions, of which two may be
/// outstanding, and others may not. Therefore each rank that learns of an end, or is about to post
/// a set with that rank, posts the last contributions that it has of all ended ranks, unless it has
/// posted them before. After all living ranks have done so for all ended ranks, a contribution that
/// one living rank lacks is lacking on all: a rank that has it got it from a rank that ended, and
/// posted it after that end. A rank that leaves first posts what it has of all ranks and others may
/// lack. tests/model/posted_gather.pml checks that.
///
/// Threads: posts from one thread at a time. Any thread that asks for the state of a rank brings
/// the copies up to date.
class posted_boards {
 public:
  /// Makes the boards of the ranks of `members`. Records there the ranks that other ranks name in
  /// their sets (`membership::note_given_up`). Does not wait for the other ranks. They must make
  /// their boards in the same order before any rank posts.
  posted_boards(std::shared_ptr<bulletin> by, std::shared_ptr<membership> members);
  posted_boards(const posted_boards&) = delete;
  posted_boards& operator=(const posted_boards&) = delete;
  /// Posts the last contributions of all ranks, because others may lack contributions that this
  /// rank has used.
  ~posted_boards();

  /// Returns the copies: [ranks].
  [[nodiscard]] const std::vector<std::byte*>& boards() const noexcept { return boards_; }

  ///@{
  /// Posts a set or a contribution that this rank has written to its board by
  /// `agreement_board::write` or `give`. Before a set, posts the contributions that this rank has
  /// of each rank in the set.
  /// Throws: as `bulletin::publish`.
  void post_set(std::uint64_t revision, std::uint64_t view, std::span<const std::uint64_t> words);
  void post_contribution(std::uint64_t turn, std::uint64_t what, std::span<const std::byte> bytes);
  ///@}

  /// Returns whether `teller` has posted the contributions that it had when it learned of the end
  /// of `ended`, or has posted all and left.
  [[nodiscard]] bool has_told(rank_id teller, rank_id ended) const noexcept {
    // order: acquire; pairs with the release in `take`, so that what it had is on the copy.
    return told_[teller.index() * boards_.size() + ended.index()].load(std::memory_order_acquire);
  }

  /// Writes the content of a message of `from` to the copies. Does not trust the sender: drops
  /// content that does not continue a copy. For the bulletin, and for tests.
  void take(rank_id from, std::span<const std::byte> message) noexcept;

 private:
  using messages = std::vector<std::vector<std::byte>>;

  /// Adds to `told` the last contributions of `owner` that others may lack and that this rank has
  /// not posted.
  void add_contributions(rank_id owner, messages& told);
  /// Returns the messages that this rank must post when it learns of the end of `ended`.
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
  std::mutex taking_;                          ///< guards the members below, and posts from `take`
  std::vector<rank_id> ended_;                 ///< the ranks that this rank considers gone
  std::vector<std::uint64_t> told_turns_;      ///< [ranks]: the last turn posted
  std::uint32_t channel_;
};

}  // namespace peerbus::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/communicator/posted_boards.ipp>  // IWYU pragma: keep
#endif
