// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <peerbus/bootstrap/activity.hpp>
#include <peerbus/bootstrap/event_listener.hpp>
#include <peerbus/bootstrap/event_listeners.hpp>
#include <peerbus/bootstrap/membership_source.hpp>  // IWYU pragma: export
#include <peerbus/core/cgroup.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/function_ref.hpp>
#include <peerbus/core/home_process.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus {

namespace detail {
class told_activity;

/// The largest number of ranks that a message lists.
inline constexpr std::size_t most_listed = 8;
/// The longest time for which the exit of a process may be invisible after it has lost its
/// connections. On a machine with many times more processes than cores, more than 300 ms were
/// observed.
inline constexpr std::chrono::milliseconds slowest_exit{1000};
}  // namespace detail

/// The states of a group's ranks: which ranks run, have left or have failed. Waiting operations
/// read them every few milliseconds, but never on the fast path.
///
/// If a rank failed, died or was given up by another rank, the operations of the whole group end,
/// because any rank may be waiting for a rank that waits for that rank. If a rank left normally,
/// only operations that wait for that rank end.
///
/// In a child that the rank forked, `announce` has no effect, and the child learns nothing of the
/// other ranks.
///
/// Threads: all functions may be called from any thread of the rank.
class membership {
 public:
  /// The state of one rank, a `rank_state`, in memory that ranks may share.
  using state_word = std::atomic<std::uint32_t>;
  static_assert(state_word::is_always_lock_free);

  /// Makes the membership of ranks that share memory. `states` has `size` words, one per rank, in
  /// memory that all ranks share. `owner` keeps that memory alive. `processes` holds a pidfd per
  /// rank. An entry is empty if there is nothing to watch: a thread, the caller itself, or a kernel
  /// without pidfds. `lines` holds, per rank, the place where the rank writes its waits. `owner`
  /// keeps these places alive too. If `lines` is empty, ranks do not see each other's waits.
  /// Throws: `error` system if the kernel refuses to watch a process, for example because no file
  /// descriptor is left.
  membership(rank_id rank, std::size_t size, state_word* states, std::shared_ptr<void> owner,
             std::vector<unique_fd> processes, std::vector<detail::activity_line*> lines = {});

  /// Makes the membership of ranks that share no memory. `news` owns `states`, `size` words, one
  /// per rank, and keeps them up to date. The membership keeps `news` alive. If `own_line` is not
  /// null, this rank writes its waits there, where an `observed_group` finds them.
  membership(rank_id rank, std::size_t size, state_word* states,
             const std::shared_ptr<membership_source>& news,
             std::shared_ptr<detail::activity_line> own_line = nullptr);

  /// Lets ranks that share no memory tell each other of their waits by `activity`, so that
  /// `last_seen` knows of them. Call it before other threads use the membership.
  void tell_activity(std::shared_ptr<detail::told_activity> activity);

  /// Returns the rank of the caller.
  [[nodiscard]] rank_id rank() const noexcept { return rank_; }
  /// Returns the number of ranks of the group.
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

  /// Returns whether the caller is the process of this rank, not a child that the rank forked.
  [[nodiscard]] bool is_here() const noexcept { return home_.is_here(); }

  /// Announces the final state of this rank to all ranks. Only the first state other than `running`
  /// takes effect.
  void announce(rank_state state) noexcept;

  /// Announces `state` in `word`, if `word` is still `running`. For callers without a membership.
  /// Returns: whether `word` was changed.
  static bool announce(state_word& word, rank_state state) noexcept;

  /// Returns the state of `peer`: the one that it announced, or `failed` if its process ended
  /// without an announcement. The states `died`, `followed`, `lost` and `excluded` are returned as
  /// `failed`.
  [[nodiscard]] rank_state state(rank_id peer) const noexcept;

  /// Returns the lowest rank that has failed or that another rank has given up, if there is one.
  /// Ranks that are excluded do not count. The result is this rank only if another rank gave it up.
  /// Cost: at most two system calls, and in a subgroup the same number for the whole group, if no
  /// rank has ended since the last poll, and a few atomic loads per rank.
  [[nodiscard]] std::optional<rank_id> first_failed() const noexcept;

  /// Returns `peer_dead` if a wait for `awaited` cannot succeed, otherwise `ok`. It cannot succeed
  /// if another rank has failed or died, if another rank has given up a rank, if `awaited` has
  /// left, or if all other ranks have left. An empty `awaited` stands for any rank. A wait for the
  /// caller itself does not depend on ranks that left.
  /// Cost: as `first_failed`.
  [[nodiscard]] errc health(std::optional<rank_id> awaited) const noexcept;

  /// Excludes `peer`, which may have ended or may still run, so that operations continue without
  /// it. From now on `health`, `first_failed` and `describe_missing` ignore `peer`. Only a wait for
  /// `peer` itself still ends with `peer_dead`. Unless `peer` has left, its state becomes
  /// `excluded`. Earlier results `peer_dead`, and the ranks of `note_given_up`, are forgotten.
  void exclude(rank_id peer) noexcept;
  /// Records that another rank goes on without `peer`, which may be this rank and may live. Until
  /// this rank excludes a rank, `health` returns `peer_dead`, so that no wait goes on. No state
  /// changes.
  void note_given_up(rank_id peer) noexcept;
  /// Makes the ranks of `note_given_up` of `whole` count as given up in this group too, which is
  /// the part `ranks` of `whole`, as long as `whole` exists. Call it before other threads use the
  /// membership.
  void listen_to(const std::shared_ptr<const membership>& whole, std::vector<rank_id> ranks);
  /// Returns whether the group goes on without `peer`.
  [[nodiscard]] bool is_excluded(rank_id peer) const noexcept {
    // order: relaxed; guards no other data.
    return excluded_[peer.index()].load(std::memory_order_relaxed);
  }

  /// Returns the number of ranks without which the group goes on.
  [[nodiscard]] std::size_t exclusions() const noexcept {
    // order: relaxed; guards no other data.
    return exclusions_.load(std::memory_order_relaxed);
  }

  /// Ends the processes of `peers` as `kill -9` does. Ranks that are excluded are left alone.
  /// Returns once the processes have ended.
  /// Throws: `error` unsupported if this rank has no pidfd of one of them, as for threads and ranks
  /// of other hosts, or in a forked child (no process was ended then); timed_out or system (some
  /// may have ended then).
  void end(std::span<const rank_id> peers, deadline until);

  ///@{
  /// Returns whether nothing is known of an end of `peer`, which may be excluded: it runs and has a
  /// connection to this rank, or it also may be out of reach. Does not poll. Of excluded ranks,
  /// only a `membership_source` still tells.
  [[nodiscard]] bool is_connected(rank_id peer) const noexcept {
    return said_by(peer) == rank_state::running;
  }
  [[nodiscard]] bool may_live(rank_id peer) const noexcept;
  ///@}
  /// Returns whether `peer` is out of reach and not excluded. It then counts as ended but may live.
  [[nodiscard]] bool is_out_of_reach(rank_id peer) const noexcept {
    return said_by(peer) == rank_state::lost;
  }

  /// Records that an operation of this rank has ended with `peer_dead`. `health` calls it when it
  /// returns that.
  void note_peer_dead() const noexcept;

  /// Returns the state that this rank has if an exception ends it. The state is `followed` if an
  /// operation has ended with `peer_dead`, so that the other ranks do not take this rank for the
  /// cause. Otherwise it is `failed`.
  [[nodiscard]] rank_state end_by_exception() const noexcept;

  /// Announces that this rank has left. If more exceptions are in flight than `exceptions_before`,
  /// announces `end_by_exception()` instead. For destructors.
  void announce_end(int exceptions_before) noexcept;

  /// Returns the state of `peer` in words, such as "rank 3 died", "rank 2 failed", "rank 1 left",
  /// "rank 4 was given up by another" or "rank 0 runs". If it failed, adds the processes that the
  /// kernel has killed meanwhile because memory ran out.
  [[nodiscard]] std::string fate(rank_id peer) const;

  /// Returns the place where this rank records its waits.
  [[nodiscard]] detail::activity_line& own_activity() const noexcept { return *own_line_; }
  ///@{
  /// Returns the listeners to the events of this rank in the group.
  [[nodiscard]] event_listeners& listeners() noexcept { return listeners_; }
  [[nodiscard]] const event_listeners& listeners() const noexcept { return listeners_; }
  ///@}

  /// Records that this rank begins a wait for others, and tells listeners.
  /// Cost: that of `activity_line::begin`, and a load.
  [[nodiscard]] detail::activity_line::begun begin_wait(const group_wait& wait) const noexcept {
    const auto begun = own_line_->begin(wait);
    return listeners_.any() ? listeners_.tell_begin(begun) : begun;
  }
  /// Records that `wait` has ended because the awaited data or signal came, and tells listeners.
  /// Cost: a store and a load.
  void end_wait(const detail::activity_line::begun& wait, const wait_end& end = {}) const noexcept {
    own_line_->end(wait);
    if (listeners_.any()) listeners_.tell_end(wait, end);
  }
  /// Tells listeners that a wait has ended with the failure `code`. Other ranks still see this rank
  /// wait. `missing` is a rank that has not come, if one is known.
  void fail_wait(const detail::activity_line::begun& wait, errc code,
                 std::optional<rank_id> missing = std::nullopt) const noexcept {
    if (listeners_.any()) listeners_.tell_end(wait, {.last = missing, .fault = code});
  }

  /// Returns the places where `ranks` record their waits, for a membership of these ranks only.
  /// Empty if the ranks do not share them.
  [[nodiscard]] std::vector<detail::activity_line*> lines_of(std::span<const rank_id> ranks) const;

  /// Returns the latest wait of `rank`. Empty if `rank` has not waited for others yet, or if it
  /// shares no memory with this rank, for example on another host. In a mesh over TCP, empty if
  /// `rank` has not waited for long. The result may change at any time, and affects no other
  /// result.
  /// Cost: a clock read without a system call.
  [[nodiscard]] std::optional<activity> last_seen(rank_id rank) const noexcept;

  /// Returns `last_seen` in words, for messages: "last heard 4.9 s ago, waiting for rows of
  /// dispatch 17". Empty if `peer` shares no memory with this rank, or in a mesh over TCP has
  /// reported no wait.
  [[nodiscard]] std::string describe_last_seen(rank_id peer) const;

  /// Lists `awaited`, the ranks that a wait misses, for its error. Each rank has `what(rank)` and
  /// its `last_seen`, as in "rank 1 (epoch 0, expected 1; not heard yet), rank 3 (...)". The list
  /// ends after 8 ranks.
  [[nodiscard]] std::string describe_awaited(std::span<const rank_id> awaited,
                                             detail::function_ref<std::string(rank_id)> what) const;

  /// Describes the other ranks that have ended, for messages. Ranks that ended only because another
  /// rank was gone are left out, so that the cause can be seen, unless there are no others. The
  /// list ends after 8 ranks. Names the processes that the kernel has killed, as `fate` does. Empty
  /// if all ranks run that are not excluded.
  [[nodiscard]] std::string describe_missing() const;

  /// Returns whether `peer` ends within `patience`. Watches its pidfd, or the news if there is a
  /// `membership_source`. Waits because a dying process closes its sockets shortly before its pidfd
  /// reports the end. Returns false if there is neither a pidfd nor a source.
  [[nodiscard]] bool ends_within(rank_id peer, std::chrono::milliseconds patience) const noexcept;

 private:
  /// Returns the list of `describe_missing`. Contains ranks that ended because of another only if
  /// `followers_too`.
  [[nodiscard]] std::string describe(bool followers_too) const;

  /// Returns the words of `fate` that follow the rank.
  [[nodiscard]] const char* ending_of(rank_id peer) const noexcept;

  [[nodiscard]] bool followed(rank_id peer) const noexcept;
  [[nodiscard]] bool is_given_up(rank_id peer) const noexcept;

  /// Adds the pidfd of `peer` to one epoll set, so that a poll costs one system call for any number
  /// of ranks. With a system call per rank, hundreds of waiting ranks would use up a few cores.
  void watch(rank_id peer);

  /// Updates `ended_` from the epoll set, and the state words from the news. Also records that this
  /// rank lives, because waits that go on ask for states from time to time.
  void notice_ended() const noexcept;

  /// Returns the state of `peer` as `state` does, without a new poll. Reads `ended_` before the
  /// state word, because a process that has ended cannot change its word any more.
  [[nodiscard]] rank_state noticed(rank_id peer) const noexcept;

  /// Returns the state word of `peer`.
  [[nodiscard]] rank_state said_by(rank_id peer) const noexcept;

  detail::home_process home_;
  rank_id rank_;
  std::size_t size_;
  state_word* states_;
  std::shared_ptr<void> owner_;
  membership_source* news_ = nullptr;  ///< null if ranks share the state words
  std::vector<unique_fd> processes_;
  std::vector<detail::activity_line*> lines_;         ///< [ranks]; empty if ranks do not share them
  detail::activity_line unshared_;                    ///< the line of this rank, if ranks do not
                                                      ///< share lines
  std::shared_ptr<detail::activity_line> lent_line_;  ///< the line of this rank, if the caller gave
                                                      ///< it
  std::shared_ptr<detail::told_activity> told_;       ///< owns `lines_` if messages bring them
  detail::activity_line* own_line_;
  std::optional<memory_kills> memory_;  ///< empty if no process and no news is watched
  event_listeners listeners_;
  unique_fd watched_;
  std::unique_ptr<std::atomic<bool>[]> ended_;
  std::unique_ptr<std::atomic<bool>[]> excluded_;
  std::unique_ptr<std::atomic<bool>[]> given_up_;
  std::weak_ptr<const membership> whole_;  ///< empty unless this is a part of a group that hears of
                                           ///< ranks given up
  std::vector<rank_id> ranks_;             ///< the numbers in `whole_`
  std::atomic<std::size_t> exclusions_{0};
  mutable std::atomic<bool> told_of_death_{false};
};

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/bootstrap/membership.ipp>        // IWYU pragma: keep
#include <peerbus/bootstrap/membership_words.ipp>  // IWYU pragma: keep
#endif
