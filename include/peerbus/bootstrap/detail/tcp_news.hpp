// SPDX-License-Identifier: MIT
#pragma once

#include <linux/sockios.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/detail/connection.hpp>
#include <peerbus/bootstrap/detail/message_cursor.hpp>
#include <peerbus/bootstrap/detail/os.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/system_error.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus::detail {

/// What became of the ranks of a group whose only common place is rank 0: each of the others has a
/// `watch` connection to it. A rank says there how it ended; one whose connection ends without a
/// word has died. Rank 0 passes everything on. All of it happens when somebody looks, so a rank 0
/// that looks at nothing for a while passes nothing on meanwhile, and one that has left nothing any
/// more.
///
/// A piece of news is a rank and its state, 4 bytes each. There is at most one for each rank.
///
/// Cost of a look: one system call if nothing has arrived. Else the connection decrypts, under a
/// lock that other threads of the rank do not wait for, and OpenSSL may allocate.
class tcp_news final : public membership_news {
 public:
  using state_word = membership::state_word;
  static constexpr std::size_t news_bytes = 8;

  /// `links` by rank, empty where there is none. Throws: `error` system.
  tcp_news(rank_id me, std::vector<connection> links)
      : me_{me}, states_{std::make_unique<state_word[]>(links.size())}, links_(links.size()) {
    told_.reserve(news_bytes * links.size());
    for (std::size_t peer = 0; peer < links.size(); ++peer) {
      if (!links[peer]) continue;
      if (!watched_) watched_.reset(::epoll_create1(EPOLL_CLOEXEC));
      epoll_event event{};
      event.events = EPOLLIN;
      event.data.u64 = peer;
      if (!watched_ || ::epoll_ctl(watched_.get(), EPOLL_CTL_ADD, links[peer].get(), &event) != 0)
        throw system_failure(concat("watching the connection of ", rank_id{peer}), errno);
      links_[peer].socket = std::move(links[peer]);
      links_[peer].open = true;
    }
  }

  tcp_news(const tcp_news&) = delete;
  tcp_news& operator=(const tcp_news&) = delete;
  /// What was told last reaches the others' hosts, within reason, before the connections close.
  ~tcp_news() override {
    for (link& one : links_)
      if (one.socket) ::shutdown(one.socket.get(), SHUT_WR);
    const auto until = deadline::after(std::chrono::milliseconds{200});
    for (const link& one : links_) {
      int unacknowledged = 0;
      std::vector<pollfd> nothing;
      while (one.open && ::ioctl(one.socket.get(), SIOCOUTQ, &unacknowledged) == 0 &&
             unacknowledged != 0 && !until.expired())
        poll_for(nothing, until, std::chrono::milliseconds{1});
    }
  }

  /// One word per rank.
  [[nodiscard]] state_word* states() noexcept { return states_.get(); }

  void look() noexcept override {
    if (!watched_) return;
    // Whoever is at it brings the same news. order: acquire; pairs with the release in `unlock`.
    if (looking_.test_and_set(std::memory_order_acquire)) return;
    listen();
    pass_on();
    unlock();
  }

  void tell(rank_state state) noexcept override {
    if (!watched_) return;
    // order: acquire; pairs with the release in `unlock`. A look is short.
    while (looking_.test_and_set(std::memory_order_acquire)) ::sched_yield();
    listen();
    note(me_, state);
    pass_on();
    unlock();
  }

  bool ends_within(rank_id peer, std::chrono::milliseconds patience) noexcept override {
    const auto until = deadline::after(patience);
    for (;;) {
      look();
      if (states_[peer.index()].load(std::memory_order_relaxed) !=
          static_cast<std::uint32_t>(rank_state::running))
        return true;
      if (!watched_ || until.expired()) return false;
      pollfd entry{watched_.get(), POLLIN, 0};
      (void)::poll(&entry, 1, 1);
    }
  }

 private:
  struct link {
    connection socket;
    bool open = false;
    std::size_t sent = 0;  ///< bytes of `told_`
    std::array<std::byte, 16 * news_bytes> heard{};
    std::size_t filled = 0;
    std::size_t pieces = 0;
  };

  // order: release; pairs with the acquires of who looks next.
  void unlock() noexcept { looking_.clear(std::memory_order_release); }

  void listen() noexcept {
    std::array<epoll_event, 16> events;
    for (int count = static_cast<int>(events.size()); count == static_cast<int>(events.size());) {
      count = ::epoll_wait(watched_.get(), events.data(), static_cast<int>(events.size()), 0);
      for (int i = 0; i < count; ++i)
        hear(rank_id{static_cast<std::size_t>(events[static_cast<std::size_t>(i)].data.u64)});
    }
  }

  void hear(rank_id peer) noexcept {
    link& from = links_[peer.index()];
    while (from.open) {
      const ssize_t got = from.socket.receive(std::span{from.heard}.subspan(from.filled));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (got < 0) return hang_up(peer, means_out_of_reach(errno));
      if (got == 0) return hang_up(peer, rank_state::died);
      from.filled += static_cast<std::size_t>(got);
      if (!take_news(peer)) return hang_up(peer, rank_state::lost);
    }
  }

  /// Returns: false if it is no news.
  bool take_news(rank_id peer) noexcept {
    link& from = links_[peer.index()];
    std::size_t at = 0;
    for (; from.filled - at >= news_bytes; at += news_bytes) {
      message_cursor<const std::byte> piece{std::span{from.heard}.subspan(at, news_bytes)};
      const rank_id rank{piece.get()};
      const std::uint32_t state = piece.get();
      const bool may_say_so = peer.index() == 0 || peer == rank;
      // Each rank ends once, so that even a rank gone mad cannot keep this one listening.
      if (++from.pieces > links_.size()) return false;
      if (rank.index() >= links_.size() || !may_say_so || state == 0 ||
          state > static_cast<std::uint32_t>(rank_state::lost))
        return false;
      if (rank != me_) learn(rank, static_cast<rank_state>(state));
    }
    std::memmove(from.heard.data(), from.heard.data() + at, from.filled - at);
    from.filled -= at;
    return true;
  }

  /// A process that ends closes its connections; a host that goes away only lets them time out.
  static rank_state means_out_of_reach(int number) noexcept {
    return number == ECONNRESET || number == EPIPE ? rank_state::died : rank_state::lost;
  }

  void hang_up(rank_id peer, rank_state unless_it_said_more) noexcept {
    link& from = links_[peer.index()];
    from.open = false;
    ::epoll_ctl(watched_.get(), EPOLL_CTL_DEL, from.socket.get(), nullptr);
    learn(peer, unless_it_said_more);
  }

  void learn(rank_id rank, rank_state state) noexcept {
    if (membership::announce(states_[rank.index()], state) && me_.index() == 0) note(rank, state);
  }

  /// Never allocates: once for each rank, for which there is room.
  void note(rank_id rank, rank_state state) noexcept {
    std::array<std::byte, news_bytes> piece;
    message_cursor<std::byte> to{piece};
    to.put(static_cast<std::uint32_t>(rank.index()));
    to.put(static_cast<std::uint32_t>(state));
    told_.insert(told_.end(), piece.begin(), piece.end());
    behind_ = true;
  }

  void pass_on() noexcept {
    if (!behind_) return;
    behind_ = false;
    for (link& to : links_) {
      while (to.open && to.sent < told_.size()) {
        const ssize_t put = to.socket.send(std::span{told_}.subspan(to.sent));
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) {
          // Full: later. Broken: its other direction will tell.
          behind_ = behind_ || errno == EAGAIN || errno == EWOULDBLOCK;
          break;
        }
        to.sent += static_cast<std::size_t>(put);
      }
    }
  }

  rank_id me_;
  std::unique_ptr<state_word[]> states_;
  std::vector<link> links_;
  unique_fd watched_;
  std::atomic_flag looking_;  ///< guards all below and the links
  std::vector<std::byte> told_;
  bool behind_ = false;
};

}  // namespace peerbus::detail
