// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/idle_work.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/unique_fd.hpp>
#include <peerbus/core/wait.hpp>

namespace peerbus {

/// Whether the ranks of a group can use each other's pointers.
enum class address_space { shared, separate };

/// How ranks find each other and exchange what they need before any window exists: set-up only,
/// so it may be slow, and virtual. A bootstrap outlives the transports made from it.
///
/// Threads: one call at a time per rank.
class bootstrap {
 public:
  static constexpr std::size_t max_contribution_bytes = std::size_t{64} << 20;

  /// What one rank gives to all: bytes, and optionally a file descriptor or an object.
  struct contribution {
    std::vector<std::byte> bytes;
    unique_fd fd;
    /// Reaches ranks that share addresses only; empty elsewhere.
    std::shared_ptr<const void> object = nullptr;
  };

  bootstrap(const bootstrap&) = delete;
  bootstrap& operator=(const bootstrap&) = delete;
  virtual ~bootstrap() = default;

  [[nodiscard]] rank_id rank() const noexcept { return members_->rank(); }
  [[nodiscard]] std::size_t size() const noexcept { return members_->size(); }
  /// How many ranks share this host, the caller included. A subgroup counts those outside of it as
  /// well, because they use the same cores.
  [[nodiscard]] std::size_t ranks_here() const noexcept { return ranks_here_; }
  /// How many cores the ranks on this host may run on, all together. Not `usable_cores()` of the
  /// caller: a rank pinned to one core would take the group for crowded.
  [[nodiscard]] std::size_t cores_here() const noexcept { return cores_here_; }
  /// The ranks that can pass file descriptors to the caller and so share memory with it, in
  /// ascending order and with the caller among them: those under one kernel, in one network
  /// namespace and of one user. All of them have the same list, so that
  /// `boot.subgroup(boot.near_ranks())` makes one subgroup for each host.
  [[nodiscard]] const std::vector<rank_id>& near_ranks() const noexcept { return near_ranks_; }
  /// Returns whether `peer` is one of `near_ranks()`.
  [[nodiscard]] bool is_near(rank_id peer) const noexcept {
    return std::binary_search(near_ranks_.begin(), near_ranks_.end(), peer);
  }
  [[nodiscard]] virtual address_space addresses() const noexcept = 0;
  [[nodiscard]] const std::shared_ptr<membership>& members() const noexcept { return members_; }
  /// The work that `allgather` advances while it waits.
  [[nodiscard]] const std::shared_ptr<idle_work>& idle() const noexcept { return idle_; }

  /// Collective: gives `mine` to every rank and returns what each gave, by rank. The descriptors
  /// in the result are the caller's own. `doing` names the purpose in errors, and must be the same
  /// on all ranks: it tells when they called different collectives. While this call waits, it
  /// advances `idle()` as often as that asks for.
  /// A failure ends this call, or the next one of a rank that already has its result, on every rank
  /// that takes part with the same text, and later calls with `poisoned`. Without rank 0 that may
  /// take a second longer than `until`. Throws: `error` timed_out (naming the ranks that did not
  /// come), peer_dead, mismatch (different `doing`), invalid_argument (more bytes than
  /// `max_contribution_bytes`), poisoned, system.
  [[nodiscard]] virtual std::vector<contribution> allgather(contribution mine, deadline until,
                                                            std::string_view doing) = 0;

  /// Makes a bootstrap of `ranks`, some of the ranks of this one. Collective over this bootstrap:
  /// all of its ranks call, each with the list of its own subgroup, so that one call makes several
  /// disjoint ones. A rank that needs no subgroup passes itself alone. Overlapping subgroups take a
  /// call each. (All ranks take part because `allgather` is the only way by which members can
  /// exchange what a subgroup needs. In return all lists are checked, on all ranks, before anything
  /// is made.)
  ///
  /// `ranks` names the members, the caller among them, and is the same on all members. The numbers
  /// of the members in the subgroup are 0, 1, ... in its order; `parent_rank` translates them back.
  ///
  /// The result serves wherever a bootstrap does, and makes subgroups in turn. Its collectives, its
  /// time-outs and its `members()` are its own. It passes descriptors if all members are near each
  /// other (`near_ranks`), even if this bootstrap cannot. It shares `idle()` with this bootstrap,
  /// so that a rank that waits in either advances the transports of both. Members may use it, this
  /// bootstrap and other subgroups in any order that all members of each have in common, and each
  /// of them from a thread of its own.
  ///
  /// Once made, a subgroup depends on its members alone: if another rank ends, this bootstrap
  /// reports it and the subgroup goes on. If the process of a member dies, both report it. A
  /// subgroup that is destroyed tells its members that this rank has left, or has failed if an
  /// exception destroys it; this bootstrap is not told. A subgroup may outlive this bootstrap.
  /// Destroy it before the rank ends.
  ///
  /// Cost: two allgathers of this bootstrap and one of the subgroup. Ranks that have met over TCP
  /// also meet anew: a member that dies on its way there is missed at `until`, not earlier.
  /// Throws, on all ranks of this bootstrap, which stays usable: `agreed_error` invalid_argument (a
  /// list that is empty, names a rank twice or one that does not exist, or lacks the caller),
  /// mismatch (lists of members that differ), system. Throws, on the ranks concerned: `error` as
  /// `allgather` of this bootstrap or, with the members named, of the subgroup.
  [[nodiscard]] std::unique_ptr<bootstrap> subgroup(
      const std::vector<rank_id>& ranks,
      deadline until = deadline::after(std::chrono::seconds{30}));

  /// Returns the number that `member` of this subgroup has in the bootstrap that made it. Where
  /// this is no subgroup, returns `member`.
  [[nodiscard]] rank_id parent_rank(rank_id member) const noexcept {
    return parent_ranks_.empty() ? member : parent_ranks_[member.index()];
  }

 protected:
  bootstrap() = default;
  void set_members(std::shared_ptr<membership> members) { members_ = std::move(members); }
  void set_neighbours(std::vector<rank_id> near_ranks, std::size_t ranks_here,
                      std::size_t cores_here) noexcept;
  /// `set_neighbours` for ranks that are all near each other.
  void set_one_host(std::size_t cores_here);

 private:
  /// Makes the caller's subgroup, in which it is `member`; the lists of all ranks have been
  /// checked.
  [[nodiscard]] virtual std::unique_ptr<bootstrap> make_subgroup(const std::vector<rank_id>& ranks,
                                                                 rank_id member,
                                                                 deadline until) = 0;

  std::shared_ptr<membership> members_;
  std::shared_ptr<idle_work> idle_ = std::make_shared<idle_work>();
  std::size_t ranks_here_ = 1;
  std::size_t cores_here_ = 1;
  std::vector<rank_id> near_ranks_;
  std::vector<rank_id> parent_ranks_;  ///< by rank; empty where this is no subgroup
};

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
// `subgroup` stands on it, so it ends with the bodies of both.
#include <peerbus/bootstrap/agreement.hpp>  // IWYU pragma: keep
#endif
