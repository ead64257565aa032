// SPDX-License-Identifier: MIT
#pragma once

#include <linux/sockios.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/bulletin.hpp>
#include <peerbus/bootstrap/detail/connection.hpp>
#include <peerbus/bootstrap/detail/news_stream.hpp>
#include <peerbus/bootstrap/detail/os.hpp>
#include <peerbus/bootstrap/detail/yielding_lock.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/home_process.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/system_error.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus::detail {

/// The rank states of a group whose ranks share no memory. Each non-zero rank has a `watch`
/// connection to rank 0. It sends its final state there. If its connection ends without that, it
/// has died or is out of reach. Rank 0 passes all states on to the other ranks. Once ranks are
/// connected as a mesh, each of them has such a connection to every other, which is then the only
/// source of news about that one, and carries messages as well.
///
/// All of this happens inside `look`, `tell` and `publish`. If rank 0 does not look for a while, it
/// passes nothing on in that time, and after it has left it passes nothing on any more.
///
/// There is at most one piece of news of a state for each rank.
///
/// Cost of a poll: one system call if nothing has arrived. Otherwise the connection decrypts, and
/// OpenSSL may allocate. This happens under a lock. A thread that looks does not wait for the lock,
/// but a thread that tells does.
class tcp_failure_detector final : public membership_source, public bulletin {
 public:
  using state_word = membership::state_word;

  /// Takes the connections `links` by rank. An entry without a connection is empty.
  /// Throws: `error` system.
  tcp_failure_detector(rank_id me, std::vector<connection> links)
      : me_{me}, states_{std::make_unique<state_word[]>(links.size())}, links_(links.size()) {
    reserve(0);
    for (std::size_t peer = 0; peer < links.size(); ++peer)
      if (links[peer]) watch(peer, std::move(links[peer]));
  }

  tcp_failure_detector(const tcp_failure_detector&) = delete;
  tcp_failure_detector& operator=(const tcp_failure_detector&) = delete;
  /// Waits up to 200 ms until the other ranks' hosts have acknowledged the last news, before the
  /// connections close. In a child by fork, which shares them with its parent, only closes them.
  ~tcp_failure_detector() override {
    if (!home_.is_here()) return;
    for (link& peer_link : links_)
      if (peer_link.socket) ::shutdown(peer_link.socket.get(), SHUT_WR);
    const auto until = deadline::after(std::chrono::milliseconds{200});
    for (const link& peer_link : links_) {
      int unacknowledged = 0;
      std::vector<pollfd> nothing;
      while (peer_link.open && ::ioctl(peer_link.socket.get(), SIOCOUTQ, &unacknowledged) == 0 &&
             unacknowledged != 0 && !until.expired())
        poll_for(nothing, until, std::chrono::milliseconds{1});
    }
  }

  /// Returns the state words, one per rank.
  [[nodiscard]] state_word* states() noexcept { return states_.get(); }

  void look() noexcept override {
    if (!watched_) return;
    const std::unique_lock held{looking_, std::try_to_lock};
    if (!held) return;  // Another thread brings the same news.
    listen();
    pass_on();
  }

  void tell(rank_state state) noexcept override {
    if (!watched_) return;
    const std::lock_guard held{looking_};
    listen();
    note(me_, state);
    pass_on();
  }

  /// Connects this rank to the ranks of `more` too, by rank, so that it has a connection to each
  /// rank that runs. They do the same at about the same time, and publish only once all have.
  /// Throws: `error` system.
  void become_mesh(std::vector<connection> more) {
    const std::lock_guard held{looking_};
    for (link& known : links_) known.heard.allow_messages();
    for (std::size_t peer = 0; peer < more.size(); ++peer) {
      if (!more[peer]) continue;
      watch(peer, std::move(more[peer]));
      links_[peer].sent = told_.size();
    }
  }

  [[nodiscard]] std::uint32_t subscribe(reader read) override {
    const std::lock_guard held{looking_};
    readers_.push_back(std::move(read));
    return static_cast<std::uint32_t>(readers_.size() - 1);
  }
  void unsubscribe(std::uint32_t channel) noexcept override {
    if (!home_.is_here()) return;
    const std::lock_guard held{looking_};
    readers_[channel] = {};
  }
  void publish(std::uint32_t channel, std::span<const std::byte> message) override {
    if (message.size() > most_bytes)
      throw error{errc::invalid_argument,
                  concat("a message of ", message.size(), " bytes, expected at most ", most_bytes)};
    if (!watched_ || !home_.is_here()) return;
    const std::lock_guard held{looking_};
    append(channel, message);
    pass_on();
  }

  bool ends_within(rank_id peer, std::chrono::milliseconds patience) noexcept override {
    const auto until = deadline::after(patience);
    for (;;) {
      look();
      // order: relaxed; only the value is used. Callers that read other data of `peer` read the
      // word again in `membership::said_by`, with acquire.
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
    std::size_t sent = 0;  ///< the number of bytes of `told_` that have been sent
    news_stream heard;
    std::size_t pieces = 0;
    bool is_over = false;  ///< the rank has ended
  };

  void watch(std::size_t peer, connection socket) {
    if (!watched_) watched_ = unique_fd::above_standard(::epoll_create1(EPOLL_CLOEXEC));
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = peer;
    if (!watched_ || ::epoll_ctl(watched_.get(), EPOLL_CTL_ADD, socket.get(), &event) != 0)
      throw system_failure(concat("watching the connection of ", rank_id{peer}), errno);
    links_[peer].socket = std::move(socket);
    links_[peer].open = true;
  }

  /// Makes room in `told_` for `bytes`, and for one piece for each rank, which `note` adds without
  /// allocating.
  void reserve(std::size_t bytes) {
    told_.reserve(told_.size() + bytes + news::head_bytes * links_.size());
  }

  void listen() noexcept {
    std::array<epoll_event, 16> events;
    for (int count = static_cast<int>(events.size()); count == static_cast<int>(events.size());) {
      count = ::epoll_wait(watched_.get(), events.data(), static_cast<int>(events.size()), 0);
      for (int i = 0; i < count; ++i) hear(rank_id{events[static_cast<std::size_t>(i)].data.u64});
    }
  }

  void hear(rank_id peer) noexcept {
    link& sender = links_[peer.index()];
    while (sender.open) {
      const ssize_t got = sender.socket.receive(sender.heard.room());
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return;
      if (got < 0) return hang_up(peer, means_out_of_reach(errno));
      if (got == 0) return hang_up(peer, rank_state::died);
      sender.heard.add(static_cast<std::size_t>(got));
      if (!take_news(peer)) return hang_up(peer, rank_state::lost);
    }
  }

  /// Takes the complete pieces of news that have arrived from `peer`.
  /// Returns: false if a piece is invalid.
  bool take_news(rank_id peer) noexcept {
    link& sender = links_[peer.index()];
    for (news piece;;) {
      const auto found = sender.heard.next(piece);
      if (found != news_stream::status::piece) return found == news_stream::status::more;
      if (piece.has_message()) {
        if (piece.subject < readers_.size() && readers_[piece.subject].take)
          readers_[piece.subject].take(peer, piece.message);
        continue;
      }
      const rank_id rank{piece.subject};
      const bool may_say_so = peer.index() == 0 || peer == rank;
      // Each rank ends once. More news than ranks would let a faulty rank keep this one listening
      // forever.
      if (++sender.pieces > links_.size()) return false;
      if (rank.index() >= links_.size() || !may_say_so || piece.state == 0 ||
          piece.state > static_cast<std::uint32_t>(rank_state::lost))
        return false;
      // What a rank in a mesh has sent comes before the news of its end, on its own connection.
      const bool hears_it_itself = links_[rank.index()].socket && peer != rank;
      if (rank != me_ && !hears_it_itself) learn(rank, static_cast<rank_state>(piece.state));
    }
  }

  /// Returns the state that an error of a connection means. A process that ends closes its
  /// connections. If a host goes away, its connections only time out.
  static rank_state means_out_of_reach(int number) noexcept {
    return number == ECONNRESET || number == EPIPE ? rank_state::died : rank_state::lost;
  }

  void hang_up(rank_id peer, rank_state default_state) noexcept {
    link& sender = links_[peer.index()];
    sender.open = false;
    ::epoll_ctl(watched_.get(), EPOLL_CTL_DEL, sender.socket.get(), nullptr);
    learn(peer, default_state);
  }

  /// Stores the state of a rank, unless one is known. Rank 0 also notes it for the other ranks.
  void learn(rank_id rank, rank_state state) noexcept {
    if (membership::announce(states_[rank.index()], state) && me_.index() == 0) note(rank, state);
    if (std::exchange(links_[rank.index()].is_over, true)) return;
    for (std::uint32_t channel = 0; channel < readers_.size(); ++channel) {
      if (!readers_[channel].last_words) continue;
      for (const auto& message : readers_[channel].last_words(rank)) append(channel, message);
    }
  }

  void append(std::uint32_t channel, std::span<const std::byte> message) {
    reserve(news::head_bytes + message.size());
    note(channel, news::is_message | static_cast<std::uint32_t>(message.size()));
    told_.insert(told_.end(), message.begin(), message.end());
  }

  void note(rank_id rank, rank_state state) noexcept {
    note(static_cast<std::uint32_t>(rank.index()), static_cast<std::uint32_t>(state));
  }

  /// Appends the head of a piece of news to `told_`, for which `reserve` has made room.
  void note(std::uint32_t subject, std::uint32_t state) noexcept {
    const auto head = news::encode_head(subject, state);
    told_.insert(told_.end(), head.begin(), head.end());
    behind_ = true;
  }

  /// Sends as much of `told_` as the connections take.
  void pass_on() noexcept {
    if (!behind_) return;
    behind_ = false;
    for (link& receiver : links_) {
      while (receiver.open && receiver.sent < told_.size()) {
        const ssize_t put = receiver.socket.send(std::span{told_}.subspan(receiver.sent));
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) {
          // A full connection is tried again later. An error will also be seen when the connection
          // is read.
          behind_ = behind_ || errno == EAGAIN;
          break;
        }
        receiver.sent += static_cast<std::size_t>(put);
      }
    }
    if (behind_) return;
    for (link& receiver : links_) receiver.sent = 0;
    told_.clear();
  }

  home_process home_;
  rank_id me_;
  std::unique_ptr<state_word[]> states_;
  std::vector<link> links_;
  unique_fd watched_;
  yielding_lock looking_;        ///< guards `links_`, `readers_`, `told_` and `behind_`
  std::vector<reader> readers_;  ///< by channel
  std::vector<std::byte> told_;
  bool behind_ = false;  ///< whether news may be unsent
};

}  // namespace peerbus::detail
