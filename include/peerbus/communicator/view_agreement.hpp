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

/// The agreement of the living ranks of a group on the ranks that continue, without a coordinator.
/// Each rank writes on its own board, which all ranks read, and a board outlives its rank. Ranks
/// that share no memory post their writes to copies that the others have (`posted_boards`).
///
/// A rank writes the set of ranks that it knows to be gone, and the number of its view. It adds the
/// sets of others, and writes again when its set has grown. Sets only grow. A rank decides when
/// every rank outside its set has written the same set: the next view excludes that set, and its
/// number follows the highest number written beside it. Each rank writes a set only once, with one
/// number, so all ranks that decide on a set decide on the same view. If ranks decide on different
/// sets, because a rank died meanwhile, the view of the smaller set needs the dead rank in each
/// operation. No operation is completed in that view, and its members come back with the larger
/// set. tests/model/view_agreement.pml checks that.
///
/// A rank that is excluded and connected may live, and may exclude the others at the same time.
/// Therefore only more than half of the view's members, or half of them with its first member,
/// decide without a proof that it does not continue: its end, its departure, or its own number in
/// the set on its board. A rank writes this when it reads its number in the set of another rank,
/// and decides on no view afterwards. A rank whose set leaves enough members does not heed
/// connected ranks of that set, because they cannot decide without it.
///
/// It needs a reliable notice of death: a rank that the membership reports as ended does nothing
/// any more. A living rank that others exclude (`evicted`) may enter a view with them before it
/// learns of that. No operation is completed in that view. tests/model/posted_views.pml has such
/// ranks, and shows that they enter no view that the others enter without them.
///
/// Threads: one call at a time per rank.
class view_agreement {
 public:
  /// Makes the agreement of a group whose ranks have the boards `boards`: [ranks], each of
  /// `agreement_board::bytes_for(ranks)`, aligned to 64 bytes. The boards must outlive it. If they
  /// are copies, `posted` has them and must outlive it, too; otherwise `posted` is null.
  view_agreement(std::shared_ptr<membership> members, std::vector<std::byte*> boards,
                 const wait_thresholds& thresholds, posted_boards* posted = nullptr)
      : members_{std::move(members)},
        boards_{std::move(boards)},
        thresholds_{thresholds},
        posted_{posted} {}

  /// Returns the view on which the living ranks of `present`, this rank's view, agree. It excludes
  /// ranks that have ended or left, and `evicted`. Returns `present` if no rank is gone before
  /// `noticed`. Collective among the living ranks except `evicted`, which may call it and then get
  /// view_changed. The membership ignores ranks that are gone as soon as the call knows of them.
  ///
  /// Ranks that are out of reach may live and agree likewise, unless a rank that continues has seen
  /// their end or names them in `evicted`. The others continue without them only if they are more
  /// than half of the members of `present`, or half of them with its first member. Fewer ranks wait
  /// for ranks of `evicted` that are connected until these end, leave or give way.
  /// Cost: each rank writes its board once for each set that it knows, and reads all boards.
  /// Throws: `error` timed_out that names a rank which did not call; view_changed if the others
  /// continued without this rank; unreachable if too few are left.
  [[nodiscard]] group_view agree(const group_view& present, deadline noticed, deadline until,
                                 std::span<const rank_id> evicted = {});

  /// Returns the contributions `own` of the members of `view`, in the order of their ranks. All
  /// must have equally many bytes, up to `most_bytes`. Collective among them. Either all living
  /// members get the result, or all get an error. It fails only if a member gives no more, because
  /// it has ended or has begun to agree on another view. On posted boards, a member that has ended
  /// gives no more when all living members have posted its contributions. tests/model/gather.pml
  /// and posted_gather.pml check that. Deadlines may end the call on some members only, and so may
  /// a connection that fails while both its ranks live.
  /// Cost: a signal, and a wait for each member.
  /// Throws: `error` peer_dead or timed_out, with the rank that did not come; mismatch if ranks do
  /// something else than `doing`; view_changed if others continued without this rank;
  /// invalid_argument if there are too many bytes.
  [[nodiscard]] std::vector<std::byte> gather(const group_view& view, std::string_view doing,
                                              std::span<const std::byte> own, deadline until);

 private:
  /// A board as another rank has read it.
  struct record {
    std::uint64_t revision = 0;
    std::uint64_t view = 0;
    std::vector<bool> gone;
    std::vector<bool> doubtful;  ///< the ranks of `gone` that may live, as far as the writer knows
  };

  [[nodiscard]] agreement_board& board_of(rank_id rank) const noexcept {
    return agreement_board::at(boards_[rank.index()]);
  }
  [[nodiscard]] rank_id own() const noexcept { return members_->rank(); }

  /// Writes `gone`, `doubtful_` and `view` to the board of this rank, and posts them.
  void write(const std::vector<bool>& gone, std::uint64_t view);
  /// Returns the latest record of `rank`, without a set if `rank` is writing.
  [[nodiscard]] record read(rank_id rank) const;
  /// Returns whether `rank` is another rank, outside `gone`, that has ended or left.
  [[nodiscard]] bool has_ended(rank_id rank, const std::vector<bool>& gone) const noexcept {
    return rank != own() && !gone[rank.index()] && members_->state(rank) != rank_state::running;
  }
  /// Returns whether the board of `rank` names `named` among the ranks that are gone.
  [[nodiscard]] bool has_named(rank_id rank, rank_id named) const noexcept {
    const std::size_t bit = named.index();
    // order: relaxed; it is a single bit, and guards nothing that is read.
    return (board_of(rank).gone()[bit / 64].load(std::memory_order_relaxed) >> bit % 64 & 1U) != 0;
  }
  /// Adds `rank` to `gone`, and makes the membership ignore it.
  void take_out(std::vector<bool>& gone, rank_id rank, bool is_doubtful) noexcept;
  /// Adds the ranks that have ended to `gone`. Returns whether there were any.
  bool add_ended(std::vector<bool>& gone) noexcept;
  /// Adds the ranks in the set of `theirs` to `gone`. Returns whether `gone` has grown.
  bool add(std::vector<bool>& gone, const record& theirs) noexcept;
  /// Returns whether `rank` goes on in no view after its present one: it has ended or left, or its
  /// board names itself.
  [[nodiscard]] bool is_proved_out(rank_id rank) const noexcept;
  /// Forgets the doubts about ranks of `gone` that are proved out. Returns whether there were any.
  bool drop_doubts(const std::vector<bool>& gone) noexcept;
  /// Returns whether `gone` has `doubtful` members of `present`, of which each is connected, so
  /// that it may still be proved out.
  [[nodiscard]] bool may_prove(const group_view& present, const std::vector<bool>& gone,
                               const std::vector<bool>& doubtful) const noexcept;
  /// Returns whether the members of `present` outside `gone` are more than half, or half with the
  /// first member.
  [[nodiscard]] static bool are_enough(const group_view& present,
                                       const std::vector<bool>& gone) noexcept;
  /// Checks that enough ranks continue.
  /// Throws: `error` unreachable if the members of `next` are too few for `agree`, because
  /// `doubtful` ranks may live.
  static void require_enough(const group_view& present, const group_view& next,
                             const std::vector<bool>& doubtful);
  /// Checks that `rank` has not excluded this rank from the view after `present`. Otherwise this
  /// rank writes itself to its board, and goes on in no view.
  /// Throws: `error` view_changed if `rank` has continued, or is about to, without this rank.
  void require_member(rank_id rank, const group_view& present);
  /// Returns whether `rank` gives no more contributions in `view`.
  [[nodiscard]] bool gives_no_more(rank_id rank, const group_view& view) const noexcept;
  /// Waits for the contribution of `ended` in `turn`, or until each living member of `view` has
  /// posted the contributions of each ended member. Returns peer_dead in the second case, and at
  /// once if `ended` has not ended.
  [[nodiscard]] errc await_last_words(rank_id ended, std::uint64_t turn, const group_view& view,
                                      deadline until) noexcept;
  /// Waits until `awaited`, or another rank outside `gone`, has written its board after its
  /// revision in `revisions`, [ranks], or until a rank is seen to have ended. If `awaited` is this
  /// rank, waits for the other ranks only.
  /// Returns: ok if `awaited` has written; view_changed if another rank has; peer_dead if a rank
  /// has ended; timed_out.
  [[nodiscard]] errc wait(rank_id awaited, const std::vector<bool>& gone,
                          const std::vector<std::uint64_t>& revisions,
                          deadline until) const noexcept;

  std::shared_ptr<membership> members_;
  std::vector<std::byte*> boards_;
  wait_thresholds thresholds_;
  posted_boards* posted_;
  std::vector<bool> doubtful_ =
      std::vector<bool>(boards_.size());  ///< ranks that may live, as far as is known
  std::optional<rank_id> put_out_by_;     ///< the rank whose set this rank has given way to
  std::uint64_t gathers_ = 0;             ///< the latest turn in view `gathered_in_`
  std::uint64_t gathered_in_ = 0;
};

}  // namespace peerbus::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/communicator/view_agreement.ipp>  // IWYU pragma: keep
#endif
