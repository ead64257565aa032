// SPDX-License-Identifier: MIT
#pragma once

#include <poll.h>
#include <sys/epoll.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/detail/os.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>
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

  /// Brings the words up to date with what has arrived. Allocates nothing, waits for nothing.
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
             std::vector<unique_fd> processes)
      : rank_{rank},
        size_{size},
        states_{states},
        owner_{std::move(owner)},
        processes_{std::move(processes)},
        ended_{std::make_unique<std::atomic<bool>[]>(size)} {
    processes_.resize(size_);
    for (const rank_id peer : all_ranks{size_}) watch(peer);
  }

  /// For ranks without memory in common: `news` keeps `states`, one word per rank, up to date, and
  /// lives as long as this does.
  membership(rank_id rank, std::size_t size, state_word* states,
             const std::shared_ptr<membership_news>& news)
      : membership{rank, size, states, news, {}} {
    news_ = news.get();
  }

  [[nodiscard]] rank_id rank() const noexcept { return rank_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

  /// Tells everybody what became of this rank. The first word that is not `running` stands.
  void announce(rank_state state) noexcept {
    if (announce(states_[rank_.index()], state) && news_ != nullptr) news_->tell(state);
  }

  /// The same for whoever has the word only. Returns: whether this is what stands.
  static bool announce(state_word& word, rank_state state) noexcept {
    auto expected = static_cast<std::uint32_t>(rank_state::running);
    // order: release; pairs with the acquire in `said_by`: who sees `left` sees all signals before.
    return word.compare_exchange_strong(expected, static_cast<std::uint32_t>(state),
                                        std::memory_order_release, std::memory_order_relaxed);
  }

  /// What `peer` said last, or `failed` if it has no more process and said nothing.
  [[nodiscard]] rank_state state(rank_id peer) const noexcept {
    notice_ended();
    return noticed(peer);
  }

  /// The lowest rank that failed or died, if any. Cost: one system call and a load per rank.
  [[nodiscard]] std::optional<rank_id> first_failed() const noexcept {
    notice_ended();
    for (const rank_id peer : all_ranks{size_})
      if (peer != rank_ && noticed(peer) == rank_state::failed) return peer;
    return std::nullopt;
  }

  /// Whether it still makes sense to wait for `awaited` (or, if empty, for anybody): not if any
  /// rank failed or died, nor if `awaited`, or everybody else, has left. Cost: one system call and
  /// a load per rank. Returns: ok or peer_dead.
  [[nodiscard]] errc health(std::optional<rank_id> awaited) const noexcept {
    notice_ended();
    bool anybody_left = size_ == 1;
    for (const rank_id peer : all_ranks{size_}) {
      if (peer == rank_) continue;
      const auto now = noticed(peer);
      if (now == rank_state::failed || (now == rank_state::left && peer == awaited)) {
        // order: relaxed; only this rank asks for it, to word its own end.
        told_of_death_.store(true, std::memory_order_relaxed);
        return errc::peer_dead;
      }
      anybody_left = anybody_left || now == rank_state::running;
    }
    return anybody_left || awaited == rank_ ? errc::ok : errc::peer_dead;
  }

  /// How this rank ends if an exception ends it: of its own, or after `health` told it of another.
  [[nodiscard]] rank_state end_by_exception() const noexcept {
    return told_of_death_.load(std::memory_order_relaxed) ? rank_state::followed
                                                          : rank_state::failed;
  }

  /// "rank 3 died", "rank 2 failed", "rank 1 left", or "rank 0 runs".
  [[nodiscard]] std::string fate(rank_id peer) const {
    const auto now = state(peer);
    const char* what = now == rank_state::running            ? " runs"
                       : now == rank_state::left             ? " left"
                       : said_by(peer) == rank_state::failed ? " failed"
                       : said_by(peer) == rank_state::lost   ? " is out of reach"
                       : followed(peer)                      ? " ended with another"
                                                             : " died";
    return detail::concat(peer, what);
  }

  /// The fates of the ranks that do not run any more, for people: what `health` complained of.
  /// Those that only followed another into its end are left out unless nobody else is missing, so
  /// that the cause can be seen, and a long list is cut. Empty if nobody is missing.
  [[nodiscard]] std::string describe_missing() const {
    std::string causes = describe([this](rank_id peer) { return !followed(peer); });
    return causes.empty() ? describe([](rank_id) { return true; }) : causes;
  }

  /// Whether the process of `peer` has ended, or does so within `patience`: a dying process closes
  /// its sockets a moment before its pidfd tells. False where there is neither pidfd nor news.
  [[nodiscard]] bool ends_within(rank_id peer, std::chrono::milliseconds patience) const noexcept {
    if (news_ != nullptr) return news_->ends_within(peer, patience);
    const unique_fd& process = processes_[peer.index()];
    if (!process) return false;
    pollfd entry{process.get(), POLLIN, 0};  // A pidfd is readable once its process has ended.
    if (::poll(&entry, 1, static_cast<int>(patience.count())) != 1) return false;
    // The epoll set may learn of it a moment later. order: release; pairs with `noticed`.
    ended_[peer.index()].store(true, std::memory_order_release);
    return true;
  }

 private:
  template <class Included>
  [[nodiscard]] std::string describe(Included&& included) const {
    constexpr std::size_t most = 8;
    std::string text;
    std::size_t missing = 0;
    for (const rank_id peer : all_ranks{size_}) {
      if (peer == rank_ || state(peer) == rank_state::running || !included(peer)) continue;
      if (++missing > most) continue;
      if (missing > 1) text += ", ";
      text += fate(peer);
    }
    if (missing > most) text += detail::concat(" and ", missing - most, " more");
    return text;
  }

  [[nodiscard]] bool followed(rank_id peer) const noexcept {
    return said_by(peer) == rank_state::followed;
  }

  /// One epoll set for all pidfds: a look costs one system call however many ranks there are, which
  /// is what keeps hundreds of waiting ranks on few cores from spending them on looking.
  void watch(rank_id peer) {
    const unique_fd& process = processes_[peer.index()];
    if (!process) return;
    if (!watched_) watched_.reset(::epoll_create1(EPOLL_CLOEXEC));
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = peer.index();
    if (!watched_ || ::epoll_ctl(watched_.get(), EPOLL_CTL_ADD, process.get(), &event) != 0)
      throw detail::system_failure(detail::concat("watching the process of ", peer), errno);
  }

  void notice_ended() const noexcept {
    if (news_ != nullptr) news_->look();
    if (!watched_) return;
    std::array<epoll_event, 16> events;
    for (int count = static_cast<int>(events.size()); count == static_cast<int>(events.size());) {
      count = ::epoll_wait(watched_.get(), events.data(), static_cast<int>(events.size()), 0);
      for (int i = 0; i < count; ++i) {
        const std::size_t peer = events[static_cast<std::size_t>(i)].data.u64;
        // order: release; pairs with the acquire in `noticed`, so that a thread that reads this
        // reads the last word of the process too.
        ended_[peer].store(true, std::memory_order_release);
        ::epoll_ctl(watched_.get(), EPOLL_CTL_DEL, processes_[peer].get(), nullptr);
      }
    }
  }

  /// Looks at `ended_` before the word: the word of an ended process is its last.
  [[nodiscard]] rank_state noticed(rank_id peer) const noexcept {
    // order: acquire; pairs with the releases in `notice_ended` and `ends_within`.
    const bool ended = ended_[peer.index()].load(std::memory_order_acquire);
    const auto said = said_by(peer);
    const bool died = said == rank_state::died || (said == rank_state::running && ended);
    const bool bad = died || said == rank_state::followed || said == rank_state::lost;
    return bad ? rank_state::failed : said;
  }

  [[nodiscard]] rank_state said_by(rank_id peer) const noexcept {
    // order: acquire; pairs with the release in `announce`.
    return static_cast<rank_state>(states_[peer.index()].load(std::memory_order_acquire));
  }

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
