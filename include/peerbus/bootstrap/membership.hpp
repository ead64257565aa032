// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <peerbus/core/compiled.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus {

/// What a rank says of itself, in memory that all ranks read, or in messages where they have none
/// in common. Who died can say nothing: that is seen from its pidfd or its connection, or said by
/// its parent process if that is one of ours.
enum class rank_state : std::uint32_t {
  running = 0,   ///< zero, so that fresh memory says it
  left = 1,      ///< ended in good order and will take part in nothing more
  failed = 2,    ///< ended by an error
  died = 3,      ///< ended without a word; `membership::state` reports it as `failed`
  followed = 4,  ///< ended because another rank was gone; likewise reported as `failed`
  lost = 5       ///< out of reach, so that nobody can tell; likewise reported as `failed`
};

/// Where the states of a group come from that has no memory in common. A `membership` asks it
/// before each look at the words, so it is cheap when there is nothing new.
///
/// Threads: all functions may be called from any thread of the rank.
class membership_news {
 public:
  membership_news() = default;
  membership_news(const membership_news&) = delete;
  membership_news& operator=(const membership_news&) = delete;
  virtual ~membership_news() = default;

  /// Brings the words up to date with what has arrived. Waits for nothing. If nothing has arrived,
  /// allocates nothing.
  virtual void look() noexcept = 0;
  /// Tells the other ranks what became of this one.
  virtual void tell(rank_state state) noexcept = 0;
  /// Looks until `peer` does not run any more, or `patience` is over. Returns: whether it ended.
  virtual bool ends_within(rank_id peer, std::chrono::milliseconds patience) noexcept = 0;
};

/// Who is still there. Asked by waiters every few milliseconds, never on the fast path.
///
/// A rank that failed or died takes the whole group with it: any rank may be waiting for one that
/// waits for the dead one. A rank that left in good order is missed only by who waits for it.
///
/// Threads: all functions may be called from any thread of the rank.
class membership {
 public:
  using state_word = std::atomic<std::uint32_t>;
  static_assert(state_word::is_always_lock_free);

  /// `states` is one word per rank in memory shared by all of them; `owner` keeps it alive.
  /// `processes` holds a pidfd per rank, empty ones where there is nothing to watch (a thread, the
  /// caller itself, a kernel without pidfds).
  /// Throws: `error` system, when no descriptor is left for watching them.
  membership(rank_id rank, std::size_t size, state_word* states, std::shared_ptr<void> owner,
             std::vector<unique_fd> processes);

  /// For ranks without memory in common: `news` keeps `states`, one word per rank, up to date, and
  /// lives as long as this does.
  membership(rank_id rank, std::size_t size, state_word* states,
             const std::shared_ptr<membership_news>& news);

  [[nodiscard]] rank_id rank() const noexcept { return rank_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

  /// Tells everybody what became of this rank. The first word that is not `running` stands.
  void announce(rank_state state) noexcept;

  /// The same for whoever has the word only. Returns: whether this is what stands.
  static bool announce(state_word& word, rank_state state) noexcept;

  /// What `peer` said last, or `failed` if it has no more process and said nothing.
  [[nodiscard]] rank_state state(rank_id peer) const noexcept;

  /// The lowest rank that failed or died, if any. Cost: one system call and a load per rank.
  [[nodiscard]] std::optional<rank_id> first_failed() const noexcept;

  /// Whether it still makes sense to wait for `awaited` (or, if empty, for anybody): not if any
  /// rank failed or died, nor if `awaited`, or everybody else, has left. Cost: one system call and
  /// a load per rank. Returns: ok or peer_dead.
  [[nodiscard]] errc health(std::optional<rank_id> awaited) const noexcept;

  /// How this rank ends if an exception ends it: of its own, or after `health` told it of another.
  [[nodiscard]] rank_state end_by_exception() const noexcept;

  /// Announces that this rank has left or, if more exceptions are in flight than
  /// `exceptions_before`, how an exception ends it. For destructors.
  void announce_end(int exceptions_before) noexcept;

  /// "rank 3 died", "rank 2 failed", "rank 1 left", or "rank 0 runs".
  [[nodiscard]] std::string fate(rank_id peer) const;

  /// The fates of the ranks that do not run any more, for people: what `health` complained of.
  /// Those that only followed another into its end are left out unless nobody else is missing, so
  /// that the cause can be seen, and a long list is cut. Empty if nobody is missing.
  [[nodiscard]] std::string describe_missing() const;

  /// Whether the process of `peer` has ended, or does so within `patience`: a dying process closes
  /// its sockets a moment before its pidfd tells. False where there is neither pidfd nor news.
  [[nodiscard]] bool ends_within(rank_id peer, std::chrono::milliseconds patience) const noexcept;

 private:
  [[nodiscard]] std::string describe(bool followers_too) const;

  [[nodiscard]] bool followed(rank_id peer) const noexcept;

  /// One epoll set for all pidfds: a look costs one system call however many ranks there are, which
  /// is what keeps hundreds of waiting ranks on few cores from spending them on looking.
  void watch(rank_id peer);

  void notice_ended() const noexcept;

  /// Looks at `ended_` before the word: the word of an ended process is its last.
  [[nodiscard]] rank_state noticed(rank_id peer) const noexcept;

  [[nodiscard]] rank_state said_by(rank_id peer) const noexcept;

  rank_id rank_;
  std::size_t size_;
  state_word* states_;
  std::shared_ptr<void> owner_;
  membership_news* news_ = nullptr;  ///< null where the words are all there is
  std::vector<unique_fd> processes_;
  unique_fd watched_;
  std::unique_ptr<std::atomic<bool>[]> ended_;
  mutable std::atomic<bool> told_of_death_{false};
};

}  // namespace peerbus

#ifndef PEERBUS_COMPILED
#include <peerbus/bootstrap/impl/membership.hpp>  // IWYU pragma: keep
#endif
