// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/communicator/agreement_board.hpp>
#include <peerbus/communicator/group_view.hpp>
#include <peerbus/communicator/posted_boards.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/core/wait.hpp>

namespace peerbus::detail {

/// The agreement of the living ranks of a group on who goes on, without a coordinator. Each rank
/// writes on a board of its own, which all ranks read, and a board outlives its rank. Where ranks
/// share no memory, they post what they write to copies that the others have (`posted_boards`).
///
/// A rank writes the set of ranks that are gone, as it knows it, and the number of its view. It
/// adds what others have written, and writes again when its set has grown. Sets only grow. A rank
/// decides as soon as every rank outside its set has written the same set: the next view is without
/// that set, and its number follows the highest number written beside it. Each rank writes a set
/// once only, with one number, so whoever decides on a set decides on the same view. If ranks
/// decide on different sets, because one of them died meanwhile, then the smaller set's view needs
/// the dead rank in each operation; nothing is completed in it, and its members come back with the
/// larger set. tests/model/view_agreement.pml checks that.
///
/// It needs a reliable notice of death: a rank that the membership reports as ended does nothing
/// any more. A rank that lives and is put out by others (`evicted`) may come to a view with them
/// before it learns of that, in which nothing is completed; tests/model/posted_views.pml has such
/// ranks, and shows that it comes to no view that the others are in without it.
///
/// Threads: one call at a time per rank.
class view_agreement {
 public:
  /// Makes the agreement of a group whose ranks have these boards: [ranks], each of
  /// `agreement_board::bytes_for(ranks)`, aligned to 64 bytes. They outlive it, and so does
  /// `posted`, which has them if they are copies, and else is null.
  view_agreement(std::shared_ptr<membership> members, std::vector<std::byte*> boards,
                 const wait_thresholds& thresholds, posted_boards* posted = nullptr)
      : members_{std::move(members)},
        boards_{std::move(boards)},
        thresholds_{thresholds},
        posted_{posted} {}

  /// Returns the view that the living ranks of `present`, this rank's view, agree on: without those
  /// that have ended or left and without `evicted`, or `present` if there is none before `noticed`.
  /// Collective among the living ranks but `evicted`, who may run, and then get view_changed in
  /// this call. From when the call knows of them, the membership takes no notice of ranks that are
  /// gone. Those that are out of reach may live and agree likewise, unless a rank that goes on has
  /// seen their end or names them in `evicted`: without them only more than half of the members of
  /// `present` go on, or half of them with the first.
  /// Cost: each rank writes its board once for each set that it knows, and reads all.
  /// Throws: `error` timed_out that names the ranks which did not come; view_changed if the others
  /// went on without this rank; unreachable if too few are left.
  [[nodiscard]] group_view agree(const group_view& present, deadline noticed, deadline until,
                                 std::span<const rank_id> evicted = {});

  /// Returns what the members of `view` give as `own`, equally many bytes each, up to `most_bytes`,
  /// in the order of their ranks. Collective among them. Either all members that live get it, or
  /// all get an error: it fails only if a member gives nothing any more, as it has ended or has
  /// begun to agree on another view. On posted boards, a member that has ended gives nothing any
  /// more when all that live have told what they have of it. tests/model/gather.pml and
  /// posted_gather.pml check that. Deadlines may end the call on some alone, and so may a
  /// connection that fails while both its ranks live.
  /// Cost: a signal, and a wait for each member.
  /// Throws: `error` peer_dead or timed_out, with the rank that did not come; mismatch if ranks do
  /// something else than `doing`; view_changed if others went on without this rank;
  /// invalid_argument if there are too many bytes.
  [[nodiscard]] std::vector<std::byte> gather(const group_view& view, std::string_view doing,
                                              std::span<const std::byte> own, deadline until);

 private:
  /// A board as another rank has read it.
  struct record {
    std::uint64_t revision = 0;
    std::uint64_t view = 0;
    std::vector<bool> gone;
    std::vector<bool> doubtful;  ///< those of `gone` that may live, as far as `rank` knows
  };

  [[nodiscard]] agreement_board& board_of(rank_id rank) const noexcept {
    return agreement_board::at(boards_[rank.index()]);
  }
  [[nodiscard]] rank_id own() const noexcept { return members_->rank(); }

  /// Writes the board of this rank, with `doubtful_`.
  void write(const std::vector<bool>& gone, std::uint64_t view);
  /// Returns what `rank` has written last, without a set if it is writing.
  [[nodiscard]] record read(rank_id rank) const;
  /// Returns whether another rank, outside `gone`, has ended.
  [[nodiscard]] bool has_ended(rank_id rank, const std::vector<bool>& gone) const noexcept {
    return rank != own() && !gone[rank.index()] && members_->state(rank) != rank_state::running;
  }
  /// Returns whether the board of `rank` has `named` among those that are gone.
  [[nodiscard]] bool has_named(rank_id rank, rank_id named) const noexcept {
    const std::size_t bit = named.index();
    // order: relaxed; it is a single bit, and guards nothing that is read.
    return (board_of(rank).gone()[bit / 64].load(std::memory_order_relaxed) >> bit % 64 & 1U) != 0;
  }
  /// Adds `rank` to `gone`, and lets the membership take no notice of it.
  void take_out(std::vector<bool>& gone, rank_id rank, bool is_doubtful) noexcept;
  /// Adds the ranks that have ended to `gone`. Returns whether there were any.
  bool add_ended(std::vector<bool>& gone) noexcept;
  /// Adds what `theirs` has to `gone`. Returns whether it had ranks that `gone` has not.
  bool add(std::vector<bool>& gone, const record& theirs) noexcept;
  /// Throws: `error` unreachable if the members of `next` are too few for `agree`, as those that
  /// are `doubtful` may live.
  static void require_enough(const group_view& present, const group_view& next,
                             const std::vector<bool>& doubtful);
  /// Throws: `error` view_changed if `rank` has gone on, or is about to, without this rank.
  void require_member(rank_id rank) const;
  /// Returns whether a member of `view` gives nothing any more in it.
  [[nodiscard]] bool gives_no_more(rank_id rank, const group_view& view) const noexcept;
  /// Waits, if `ended` has ended, until its contribution of `turn` is there, or each member of
  /// `view` that lives has told what it has of each that has ended. Returns peer_dead once they
  /// have.
  [[nodiscard]] errc await_last_words(rank_id ended, std::uint64_t turn, const group_view& view,
                                      deadline until) noexcept;
  /// Waits until `awaited`, or this rank for nobody, or another rank outside `gone` has written its
  /// board after its revision in `revisions`, [ranks], or the end of one is seen.
  [[nodiscard]] errc wait(rank_id awaited, const std::vector<bool>& gone,
                          const std::vector<std::uint64_t>& revisions,
                          deadline until) const noexcept;

  std::shared_ptr<membership> members_;
  std::vector<std::byte*> boards_;
  wait_thresholds thresholds_;
  posted_boards* posted_;
  std::vector<bool> doubtful_ =
      std::vector<bool>(boards_.size());  ///< may live, as far as is known
  std::uint64_t gathers_ = 0;  ///< those of the view in `gathered_in_`, and the number of that view
  std::uint64_t gathered_in_ = 0;
};

}  // namespace peerbus::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/communicator/view_agreement.ipp>  // IWYU pragma: keep
#endif
