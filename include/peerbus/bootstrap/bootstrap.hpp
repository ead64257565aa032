// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/bulletin.hpp>
#include <peerbus/bootstrap/idle_work.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/unique_fd.hpp>
#include <peerbus/core/wait.hpp>

namespace peerbus {

struct launch_settings;

namespace detail {

class admission_place;

}  // namespace detail

/// The relation between the address spaces of a group's ranks.
enum class address_space {
  shared,   ///< a pointer of one rank is valid on all ranks
  separate  ///< ranks are processes, each with its own addresses
};

/// A rank's connection to the other ranks of its group, used to set up windows and other shared
/// state. Set-up may be slow, so the functions are virtual. A bootstrap must outlive the transports
/// that are made from it.
///
/// Threads: one call at a time per rank.
class bootstrap {
 public:
  /// The largest size of `contribution::bytes`.
  static constexpr std::size_t max_contribution_bytes = std::size_t{64} << 20;

  /// The data that one rank gives to all ranks: bytes, and optionally a file descriptor or an
  /// object.
  struct contribution {
    std::vector<std::byte> bytes;  ///< may be empty
    unique_fd fd;                  ///< empty if no descriptor is passed
    /// An object that only ranks in the address space of the giver receive. Other ranks receive
    /// null.
    std::shared_ptr<const void> object = nullptr;
  };

  bootstrap(const bootstrap&) = delete;
  bootstrap& operator=(const bootstrap&) = delete;
  virtual ~bootstrap() = default;

  /// Returns the rank of the caller in the group.
  [[nodiscard]] rank_id rank() const noexcept { return members_->rank(); }
  /// Returns the number of ranks of the group.
  [[nodiscard]] std::size_t size() const noexcept { return members_->size(); }
  /// Returns the number of ranks on this host, including the caller. A subgroup also counts the
  /// ranks outside of it, because they use the same cores.
  [[nodiscard]] std::size_t ranks_here() const noexcept { return ranks_here_; }
  /// Returns the number of cores on which the ranks of this host may run, all ranks together.
  /// `usable_cores()` only counts the cores of the caller, so that a rank which is pinned to one
  /// core would find the host crowded.
  [[nodiscard]] std::size_t cores_here() const noexcept { return cores_here_; }
  /// Returns whether this host has more ranks than cores, so that other ranks may need the core of
  /// a rank that waits. All ranks that are near each other get the same answer.
  [[nodiscard]] bool shares_cores() const noexcept { return ranks_here_ > cores_here_; }
  /// Returns the ranks that can pass file descriptors to the caller and so share memory with it, in
  /// ascending order and including the caller. These ranks have the same kernel, network namespace
  /// and user. All of them get the same list, so that `boot.subgroup(boot.near_ranks())` makes one
  /// subgroup for each host.
  [[nodiscard]] const std::vector<rank_id>& near_ranks() const noexcept { return near_ranks_; }
  /// Returns whether `peer` is one of `near_ranks()`.
  [[nodiscard]] bool is_near(rank_id peer) const noexcept {
    return std::binary_search(near_ranks_.begin(), near_ranks_.end(), peer);
  }
  /// Returns the address of this host over which its ranks met ranks of other hosts, such as
  /// "10.0.0.1". Empty if it is unknown, or if all ranks met within one host.
  [[nodiscard]] const std::string& rendezvous_address() const noexcept {
    return rendezvous_address_;
  }
  /// The former name of `rendezvous_address`.
  [[deprecated("use rendezvous_address")]] [[nodiscard]] const std::string& meeting_address()
      const noexcept {
    return rendezvous_address_;
  }
  /// Returns whether a `contribution` may hold a descriptor. Ranks that met over TCP cannot pass
  /// descriptors, even on one host, but their `subgroup(near_ranks())` can. The result is the same
  /// on all ranks.
  [[nodiscard]] virtual bool passes_descriptors() const noexcept { return true; }
  /// Returns whether the ranks share an address space, as threads of one process do.
  [[nodiscard]] virtual address_space addresses() const noexcept = 0;
  /// Returns the membership, which has the states of the ranks. It may outlive the bootstrap.
  [[nodiscard]] const std::shared_ptr<membership>& members() const noexcept { return members_; }
  /// Returns whether, once ranks are gone, `go_on` makes `allgather` work among the ranks that are
  /// left. It does for processes that met on one host and for threads.
  [[nodiscard]] virtual bool can_go_on() const noexcept { return false; }
  /// Restricts later calls of `allgather` to `ranks`. `ranks` are ascending, include the caller,
  /// and know that the other ranks are gone. The contributions of the other ranks are then empty.
  /// `meet` makes a bootstrap of `ranks`, numbered anew, when the next allgather needs it. Does
  /// nothing if the same ranks have met already. All of `ranks` must call it before their next
  /// allgather.
  /// Throws: `error` unsupported unless `can_go_on`.
  void go_on(std::vector<rank_id> ranks,
             std::function<std::unique_ptr<bootstrap>(deadline until)> meet);
  /// Returns the messages between the ranks, or null if there are none. If ranks share no memory,
  /// communicators use them to agree on the ranks that go on. The result is null on all ranks or on
  /// none.
  [[nodiscard]] virtual std::shared_ptr<bulletin> messages() const noexcept { return nullptr; }
  /// A function that exchanges bytes among some ranks. `own` has up to 1 024 bytes, and the same
  /// number on each rank. It returns the bytes of all these ranks, in their order.
  using sharing = std::function<std::vector<std::byte>(std::span<const std::byte> own)>;
  /// Makes a bootstrap of `ranks`, in their order, in which the caller is `member`. Uses neither
  /// the other ranks of this group nor its `allgather`. Collective among `ranks`. `share` carries
  /// the place where they meet. Returns null if this bootstrap has no way of its own to meet.
  /// Throws: `error` as `share`, and as the constructor of the bootstrap.
  [[nodiscard]] virtual PEERBUS_INLINE std::unique_ptr<bootstrap> meet_again(
      const std::vector<rank_id>& ranks, rank_id member, const sharing& share, deadline until);
  /// Returns the way in which processes join this group. Null if the bootstrap has no way of its
  /// own, so that processes join as they join a group of one host. `place` names the place that
  /// they call.
  [[nodiscard]] virtual PEERBUS_INLINE std::shared_ptr<detail::admission_place>
  make_admission_place(const launch_settings& place) const;
  ///@{
  /// Returns the number of slots, or the slot of a rank, in a group that processes can join
  /// (communicator/admission.hpp). Each rank has its own slot, and ranks are in the order of their
  /// slots. Ranks keep their slots if they are numbered anew because other ranks have come or gone.
  /// In another group, slots are the same as ranks.
  [[nodiscard]] std::size_t capacity() const noexcept {
    return slots_.empty() ? size() : capacity_;
  }
  [[nodiscard]] rank_id slot(rank_id rank) const noexcept {
    return slots_.empty() ? rank : slots_[rank.index()];
  }
  ///@}
  /// Sets `capacity()` and the `slot(rank)` of each rank. `slots` are ascending and below
  /// `capacity`. Called by code that makes a group, with the same arguments on all ranks.
  void set_slots(std::vector<rank_id> slots, std::size_t capacity) noexcept {
    slots_ = std::move(slots);
    capacity_ = capacity;
  }
  /// Returns the work that `allgather` advances while it waits.
  [[nodiscard]] const std::shared_ptr<idle_work>& idle() const noexcept { return idle_; }

  /// Collective: gives `own_part` to every rank and returns the contributions of all ranks, by
  /// rank. `own_part` holds at most `max_contribution_bytes` bytes. Between processes, the
  /// contributions of all ranks together have at most 1 GiB. `doing` names the purpose in errors.
  /// It must be the same on all ranks, because it shows when ranks have called different
  /// collectives. The caller owns the descriptors in the result. While this call waits, it advances
  /// `idle()` as often as `idle_work::advance` asks for.
  /// Cost: between processes, a message from each rank to rank 0 and one back that carries all
  /// contributions; between threads, a copy of all contributions per rank. Allocates. A failure
  /// ends this call with the same text on every rank that takes part. A rank that already has its
  /// result gets the failure in its next call. All later calls throw `poisoned`. If rank 0 does not
  /// respond, the call may end up to a second after `until`.
  /// Throws: `error` timed_out (naming the missing ranks), peer_dead, mismatch (different `doing`),
  /// invalid_argument (too many bytes, a child that the rank forked), unsupported (a descriptor
  /// that cannot travel to another host), out_of_memory, poisoned, system.
  [[nodiscard]] virtual std::vector<contribution> allgather(contribution own_part, deadline until,
                                                            std::string_view doing) = 0;

  /// Collective over this bootstrap: makes a bootstrap of `ranks`, a subset of this bootstrap's
  /// ranks. All ranks of this bootstrap call, each with the list of its own subgroup, so that one
  /// call makes several disjoint subgroups. A rank that needs no subgroup passes a list of itself
  /// alone. Subgroups that overlap need separate calls.
  ///
  /// `ranks` names the members, including the caller, and is the same on all members. The members
  /// have the numbers 0, 1, ... in the subgroup, in the order of `ranks`. `parent_rank` translates
  /// them back.
  ///
  /// The result can be used wherever a bootstrap can, and can make subgroups in turn. It has its
  /// own collectives, time-outs and `members()`. It passes descriptors if all members are near each
  /// other (`near_ranks`), even if this bootstrap cannot. It shares `idle()` with this bootstrap,
  /// so that a rank that waits in either bootstrap advances the transports of both.
  ///
  /// Ranks may call this bootstrap and its subgroups in any order, if that order is the same on all
  /// members of each. Different threads may use different bootstraps at once.
  ///
  /// A finished subgroup depends only on its members. If another rank ends, this bootstrap reports
  /// it and the subgroup continues. If the process of a member dies, both report it. The destructor
  /// of a subgroup tells its members that this rank has left, or has failed if an exception
  /// destroys the subgroup. It does not tell this bootstrap. A subgroup may outlive this bootstrap.
  /// Destroy it before the rank ends.
  ///
  /// Cost: at most two allgathers of this bootstrap and one of the subgroup. All ranks take part
  /// because `allgather` is the only way in which members can exchange the data that a subgroup
  /// needs. It also lets every rank check all lists before anything is made. Ranks that have met
  /// over TCP make new connections for the subgroup.
  /// Throws, on all ranks of this bootstrap, which stays usable: `agreed_error` invalid_argument (a
  /// list that is empty, names a rank twice, names a rank that does not exist, or lacks the
  /// caller), mismatch (lists of members that differ), system.
  /// Throws, on the affected ranks: `error` as `allgather` of this bootstrap or, with the members
  /// named, of the subgroup.
  [[nodiscard]] std::unique_ptr<bootstrap> subgroup(
      const std::vector<rank_id>& ranks,
      deadline until = deadline::after(std::chrono::seconds{30}));

  /// Returns the number that `member` of this subgroup has in the bootstrap that made it. If this
  /// is not a subgroup, returns `member`.
  [[nodiscard]] rank_id parent_rank(rank_id member) const noexcept {
    return parent_ranks_.empty() ? member : parent_ranks_[member.index()];
  }

 protected:
  bootstrap() = default;
  /// Sets the result of `members`. Until it is set, `rank` and `size` must not be called.
  void set_members(std::shared_ptr<membership> members) { members_ = std::move(members); }
  /// Sets the results of `near_ranks`, `ranks_here` and `cores_here`.
  void set_neighbours(std::vector<rank_id> near_ranks, std::size_t ranks_here,
                      std::size_t cores_here) noexcept;
  /// Sets the result of `rendezvous_address`.
  void set_rendezvous_address(std::string address) noexcept {
    rendezvous_address_ = std::move(address);
  }
  /// The former name of `set_rendezvous_address`.
  [[deprecated("use set_rendezvous_address")]] void set_meeting_address(
      std::string address) noexcept {
    set_rendezvous_address(std::move(address));
  }
  /// Sets the result of `idle`. Used by a bootstrap that calls the `allgather` of another
  /// bootstrap.
  void set_idle(std::shared_ptr<idle_work> work) noexcept { idle_ = std::move(work); }
  /// Returns whether `go_on` was called, so that `allgather` is `allgather_of_the_rest`.
  [[nodiscard]] bool has_gone_on() const noexcept { return !rest_.empty(); }
  /// Carries out `allgather` among the ranks of `go_on`.
  /// Throws: as `allgather`, and as `meet` of `go_on`.
  [[nodiscard]] std::vector<contribution> allgather_of_the_rest(contribution own_part,
                                                                deadline until,
                                                                std::string_view doing);
  /// Makes `allgather_of_the_rest` use the bootstrap `met`. Rank i of `met` is rank `ranks[i]`
  /// here.
  void go_on_with(std::vector<rank_id> ranks, std::unique_ptr<bootstrap> met) noexcept;
  /// Makes the subgroup `ranks` of the ranks of `go_on`, as `make_subgroup` does.
  [[nodiscard]] std::unique_ptr<bootstrap> subgroup_of_the_rest(const std::vector<rank_id>& ranks,
                                                                deadline until);
  /// Calls `set_neighbours` for a group whose ranks are all near each other.
  void set_one_host(std::size_t cores_here);

 private:
  /// Makes the caller's subgroup, in which the caller is `member`. The lists of all ranks have been
  /// checked.
  [[nodiscard]] virtual std::unique_ptr<bootstrap> make_subgroup(const std::vector<rank_id>& ranks,
                                                                 rank_id member,
                                                                 deadline until) = 0;

  /// Makes the bootstrap of `ranks`, in which the caller is `member`, for `go_on`. `meet` is the
  /// function that `go_on` was given.
  [[nodiscard]] virtual PEERBUS_INLINE std::unique_ptr<bootstrap> make_rest(
      const std::vector<rank_id>& ranks, rank_id member,
      const std::function<std::unique_ptr<bootstrap>(deadline until)>& meet, deadline until);

  /// Returns the bootstrap of the ranks of `go_on`. Makes it if there is none yet.
  [[nodiscard]] bootstrap& of_the_rest(deadline until);

  std::shared_ptr<membership> members_;
  std::shared_ptr<idle_work> idle_ = std::make_shared<idle_work>();
  std::size_t ranks_here_ = 1;
  std::size_t cores_here_ = 1;
  std::vector<rank_id> near_ranks_;
  std::string rendezvous_address_;
  std::vector<rank_id> parent_ranks_;  ///< by rank; empty unless this is a subgroup
  std::vector<rank_id> slots_;         ///< by rank; empty if slots are the same as ranks
  std::size_t capacity_ = 0;
  std::vector<rank_id> rest_;  ///< the ranks of `go_on`; empty before
  std::function<std::unique_ptr<bootstrap>(deadline)> meet_rest_;
  std::unique_ptr<bootstrap> of_the_rest_;  ///< made by `make_rest` when it is needed
};

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
// `subgroup` uses agreement.hpp, which includes the bodies of both headers at its end.
#include <peerbus/bootstrap/agreement.hpp>  // IWYU pragma: keep
#endif
