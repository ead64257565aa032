// SPDX-License-Identifier: MIT
#pragma once

#include <poll.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <exception>
#include <utility>

#include <peerbus/bootstrap/detail/os.hpp>
#include <peerbus/bootstrap/detail/told_activity.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/system_error.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus {

PEERBUS_INLINE membership::membership(rank_id rank, std::size_t size, state_word* states,
                                      std::shared_ptr<void> owner, std::vector<unique_fd> processes,
                                      std::vector<detail::activity_line*> lines)
    : rank_{rank},
      size_{size},
      states_{states},
      owner_{std::move(owner)},
      processes_{std::move(processes)},
      lines_{std::move(lines)},
      own_line_{lines_.empty() ? &unshared_ : lines_[rank.index()]},
      ended_{std::make_unique<std::atomic<bool>[]>(size)},
      excluded_{std::make_unique<std::atomic<bool>[]>(size)},
      given_up_{std::make_unique<std::atomic<bool>[]>(size)} {
  own_line_->claim();
  processes_.resize(size_);
  for (const rank_id peer : all_ranks{size_}) watch(peer);
}

PEERBUS_INLINE membership::membership(rank_id rank, std::size_t size, state_word* states,
                                      const std::shared_ptr<membership_source>& news,
                                      std::shared_ptr<detail::activity_line> own_line)
    : membership{rank, size, states, news, std::vector<unique_fd>{}} {
  news_ = news.get();
  memory_.emplace();
  if (own_line == nullptr) return;
  lent_line_ = std::move(own_line);
  own_line_ = lent_line_.get();
  own_line_->claim();
}

PEERBUS_INLINE void membership::tell_activity(std::shared_ptr<detail::told_activity> activity) {
  lines_ = activity->lines();
  lines_[rank_.index()] = own_line_;
  told_ = std::move(activity);
}

PEERBUS_INLINE void membership::announce(rank_state state) noexcept {
  if (!is_here()) return;
  if (announce(states_[rank_.index()], state) && news_ != nullptr) news_->tell(state);
}

PEERBUS_INLINE bool membership::announce(state_word& word, rank_state state) noexcept {
  auto expected = static_cast<std::uint32_t>(rank_state::running);
  // order: release; pairs with the acquires in `said_by` and `children::judge`, so that a rank that
  // sees `left` sees all signals before it. Relaxed on failure, because the present value is not
  // used.
  return word.compare_exchange_strong(expected, static_cast<std::uint32_t>(state),
                                      std::memory_order_release, std::memory_order_relaxed);
}

PEERBUS_INLINE rank_state membership::state(rank_id peer) const noexcept {
  notice_ended();
  return noticed(peer);
}

PEERBUS_INLINE std::optional<rank_id> membership::first_failed() const noexcept {
  notice_ended();
  for (const rank_id peer : all_ranks{size_})
    if (is_given_up(peer) ||
        (peer != rank_ && !is_excluded(peer) && noticed(peer) == rank_state::failed))
      return peer;
  return std::nullopt;
}

PEERBUS_INLINE errc membership::health(std::optional<rank_id> awaited) const noexcept {
  notice_ended();
  bool anybody_runs = false;
  bool is_alone = true;
  for (const rank_id peer : all_ranks{size_}) {
    const bool is_out = is_given_up(peer);
    if (!is_out && (peer == rank_ || (is_excluded(peer) && peer != awaited))) continue;
    is_alone = false;
    const auto current = noticed(peer);
    if (is_out || current == rank_state::failed ||
        (current == rank_state::left && peer == awaited)) {
      note_peer_dead();
      return errc::peer_dead;
    }
    anybody_runs = anybody_runs || current == rank_state::running;
  }
  if (anybody_runs || is_alone || awaited == rank_) return errc::ok;
  note_peer_dead();
  return errc::peer_dead;
}

PEERBUS_INLINE void membership::exclude(rank_id peer) noexcept {
  // order: relaxed; it guards no other data, and what the rank wrote is not read any more.
  if (excluded_[peer.index()].exchange(true, std::memory_order_relaxed)) return;
  exclusions_.fetch_add(1, std::memory_order_relaxed);
  // Whoever started the ranks learns from the word that the others did not end with this one.
  state_word& word = states_[peer.index()];
  std::uint32_t present = word.load(std::memory_order_relaxed);
  // Nobody else reads the words of a `membership_source`, which still reports the end of a rank.
  const bool keeps_word =
      news_ != nullptr && present != static_cast<std::uint32_t>(rank_state::lost);
  while (!keeps_word && present != static_cast<std::uint32_t>(rank_state::left) &&
         present != static_cast<std::uint32_t>(rank_state::excluded) &&
         !word.compare_exchange_weak(present, static_cast<std::uint32_t>(rank_state::excluded),
                                     std::memory_order_relaxed)) {
  }
  told_of_death_.store(false, std::memory_order_relaxed);
  // This rank goes on too, and has read whom others gave up, or reads it before it has done so.
  for (std::size_t rank = 0; rank < size_; ++rank)
    given_up_[rank].store(false, std::memory_order_relaxed);
}

PEERBUS_INLINE void membership::note_given_up(rank_id peer) noexcept {
  // order: relaxed, here and below; it guards no other data.
  given_up_[peer.index()].store(true, std::memory_order_relaxed);
}

PEERBUS_INLINE bool membership::is_given_up(rank_id peer) const noexcept {
  if (is_excluded(peer)) return false;
  if (given_up_[peer.index()].load(std::memory_order_relaxed)) return true;
  const auto whole = whole_.lock();
  return whole != nullptr && whole->is_given_up(ranks_[peer.index()]);
}

PEERBUS_INLINE void membership::listen_to(const std::shared_ptr<const membership>& whole,
                                          std::vector<rank_id> ranks) {
  if (whole->news_ == nullptr && whole->ranks_.empty()) return;  // It hears nothing.
  ranks_ = std::move(ranks);
  whole_ = whole;
}

PEERBUS_INLINE void membership::end(std::span<const rank_id> peers, deadline until) {
  std::vector<rank_id> present{peers.begin(), peers.end()};
  std::erase_if(present, [this](rank_id peer) { return is_excluded(peer); });
  for (const rank_id peer : present)
    if (!processes_[peer.index()] || !is_here())
      throw error{errc::unsupported, detail::concat("ending ", peer,
                                                    ": expected a process of this host that has "
                                                    "met this one by a bootstrap of one host")};
  for (const rank_id peer : present)
    if (::syscall(SYS_pidfd_send_signal, processes_[peer.index()].get(), SIGKILL, nullptr, 0) !=
            0 &&
        errno != ESRCH)
      throw detail::system_failure(detail::concat("ending ", peer), errno);
  for (const rank_id peer : present) {
    const auto patience =
        std::clamp<deadline::clock::duration>(until.remaining(), {}, std::chrono::hours{1});
    if (!ends_within(peer, std::chrono::ceil<std::chrono::milliseconds>(patience)))
      throw error{errc::timed_out, detail::concat("ending ", peer, ": killed, and still runs")};
  }
}

PEERBUS_INLINE void membership::note_peer_dead() const noexcept {
  // order: relaxed; guards no other data. `end_by_exception` of this rank reads it.
  told_of_death_.store(true, std::memory_order_relaxed);
}

PEERBUS_INLINE rank_state membership::end_by_exception() const noexcept {
  // order: relaxed; guards no other data. `note_peer_dead` writes it.
  return told_of_death_.load(std::memory_order_relaxed) ? rank_state::followed : rank_state::failed;
}

PEERBUS_INLINE void membership::announce_end(int exceptions_before) noexcept {
  const bool is_unwinding = std::uncaught_exceptions() > exceptions_before;
  announce(is_unwinding ? end_by_exception() : rank_state::left);
}

PEERBUS_INLINE std::vector<detail::activity_line*> membership::lines_of(
    std::span<const rank_id> ranks) const {
  std::vector<detail::activity_line*> found;
  if (lines_.empty()) return found;
  found.reserve(ranks.size());
  for (const rank_id rank : ranks) found.push_back(lines_[rank.index()]);
  return found;
}

PEERBUS_INLINE std::optional<activity> membership::last_seen(rank_id rank) const noexcept {
  if (rank == rank_) return own_activity().read();
  return rank.index() < lines_.size() ? lines_[rank.index()]->read() : std::nullopt;
}

PEERBUS_INLINE bool membership::ends_within(rank_id peer,
                                            std::chrono::milliseconds patience) const noexcept {
  if (!is_here()) return false;
  if (news_ != nullptr) return is_excluded(peer) || news_->ends_within(peer, patience);
  const unique_fd& process = processes_[peer.index()];
  if (!process) return false;
  const auto until = deadline::after(patience);
  pollfd entry{process.get(), POLLIN, 0};  // A pidfd is readable once its process has ended.
  do {  // A signal, such as that of a profiler's timer, ends a poll early.
    detail::poll_for({&entry, 1}, until, std::chrono::milliseconds{60'000});
  } while (entry.revents == 0 && !until.expired());
  if (entry.revents == 0) return false;
  // The epoll set may report the end a moment later. order: release; pairs with `noticed`.
  ended_[peer.index()].store(true, std::memory_order_release);
  return true;
}

PEERBUS_INLINE bool membership::may_live(rank_id peer) const noexcept {
  const auto announced = said_by(peer);
  return announced == rank_state::running || announced == rank_state::lost ||
         announced == rank_state::excluded;
}

PEERBUS_INLINE bool membership::followed(rank_id peer) const noexcept {
  return said_by(peer) == rank_state::followed;
}

PEERBUS_INLINE void membership::watch(rank_id peer) {
  const unique_fd& process = processes_[peer.index()];
  if (!process) return;
  if (!memory_) memory_.emplace();
  if (!watched_) watched_ = unique_fd::above_standard(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = peer.index();
  if (!watched_ || ::epoll_ctl(watched_.get(), EPOLL_CTL_ADD, process.get(), &event) != 0)
    throw detail::system_failure(detail::concat("watching the process of ", peer), errno);
}

PEERBUS_INLINE void membership::notice_ended() const noexcept {
  if (const auto whole = whole_.lock()) whole->notice_ended();
  // A child by fork has the epoll set and the connections in common with its parent.
  const bool is_shared = news_ != nullptr || watched_;
  if (is_shared && !is_here()) return;
  own_activity().beat();
  if (news_ != nullptr) news_->look();
  if (told_) told_->tell_if_due(own_activity());
  if (!watched_) return;
  std::array<epoll_event, 16> events;
  for (int count = static_cast<int>(events.size()); count == static_cast<int>(events.size());) {
    count = ::epoll_wait(watched_.get(), events.data(), static_cast<int>(events.size()), 0);
    for (int i = 0; i < count; ++i) {
      const std::size_t peer = events[static_cast<std::size_t>(i)].data.u64;
      // order: release; pairs with the acquire in `noticed`, so that a thread that reads `true`
      // also reads the last state word of the process.
      ended_[peer].store(true, std::memory_order_release);
      ::epoll_ctl(watched_.get(), EPOLL_CTL_DEL, processes_[peer].get(), nullptr);
    }
  }
}

PEERBUS_INLINE rank_state membership::noticed(rank_id peer) const noexcept {
  // order: acquire; pairs with the releases in `notice_ended` and `ends_within`.
  const bool ended = ended_[peer.index()].load(std::memory_order_acquire);
  const auto announced = said_by(peer);
  const bool died = announced == rank_state::died || (announced == rank_state::running && ended);
  const bool bad = died || (announced == rank_state::running && is_excluded(peer)) ||
                   announced == rank_state::followed || announced == rank_state::lost ||
                   announced == rank_state::excluded;
  return bad ? rank_state::failed : announced;
}

PEERBUS_INLINE rank_state membership::said_by(rank_id peer) const noexcept {
  // order: acquire; pairs with the release in `announce`.
  return static_cast<rank_state>(states_[peer.index()].load(std::memory_order_acquire));
}

}  // namespace peerbus
