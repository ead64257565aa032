// SPDX-License-Identifier: MIT
#pragma once

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

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
#include <peerbus/bootstrap/detail/arrivals.hpp>
#include <peerbus/bootstrap/detail/connection.hpp>
#include <peerbus/bootstrap/detail/news_outbox.hpp>
#include <peerbus/bootstrap/detail/news_stream.hpp>
#include <peerbus/bootstrap/detail/os.hpp>
#include <peerbus/bootstrap/detail/yielding_lock.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/home_process.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>

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
/// In a mesh, only a connection that its other end has closed is that of a process which died. One
/// that failed says nothing about the process, and its rank is lost. So is one that sends what is
/// malformed or lets too much wait for it, and it learns by a reset that it has lost this rank too.
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
      : me_{me},
        states_{std::make_unique<state_word[]>(links.size())},
        links_(links.size()),
        told_{links.size()} {
    for (std::size_t peer = 0; peer < links.size(); ++peer)
      if (links[peer]) watch(peer, std::move(links[peer]));
  }

  tcp_failure_detector(const tcp_failure_detector&) = delete;
  tcp_failure_detector& operator=(const tcp_failure_detector&) = delete;
  /// Waits up to 2 s until the connections take the last news, and up to 200 ms more until the
  /// other ranks' hosts have acknowledged it, before the connections close. In a child by fork,
  /// which shares them with its parent, only closes them.
  ~tcp_failure_detector() override {
    if (!home_.is_here()) return;
    const auto taken_until = deadline::after(std::chrono::seconds{2});
    for (pass_on(); told_.is_behind() && !taken_until.expired(); pass_on())
      poll_for({}, taken_until, std::chrono::milliseconds{1});
    for (link& peer_link : links_)
      if (peer_link.socket) ::shutdown(peer_link.socket.get(), SHUT_WR);
    const auto until = deadline::after(std::chrono::milliseconds{200});
    for (const link& peer_link : links_) {
      int unacknowledged = 0;
      while (peer_link.open && ::ioctl(peer_link.socket.get(), SIOCOUTQ, &unacknowledged) == 0 &&
             unacknowledged != 0 && !until.expired())
        poll_for({}, until, std::chrono::milliseconds{1});
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
    is_mesh_ = true;
    for (link& known : links_) known.heard.allow_messages();
    for (std::size_t peer = 0; peer < more.size(); ++peer)
      if (more[peer]) watch(peer, std::move(more[peer]));
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
    told_.append(channel, message);
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
      watched_.wait(std::chrono::milliseconds{1});
    }
  }

 private:
  struct link {
    connection socket;
    bool open = false;
    int failure = 0;        ///< the errno of a failed send, which no read reports then
    bool has_rest = false;  ///< more may have come than one look takes
    news_stream heard;
    std::size_t pieces = 0;
    bool is_over = false;  ///< the rank has ended
  };

  void watch(std::size_t peer, connection socket) {
    watched_.add(rank_id{peer}, socket.get());
    links_[peer].socket = std::move(socket);
    links_[peer].open = true;
    told_.add(peer);
  }

  void listen() noexcept {
    if (std::exchange(has_rest_, false))
      for (std::size_t peer = 0; peer < links_.size(); ++peer)
        if (std::exchange(links_[peer].has_rest, false)) hear(rank_id{peer});
    watched_.for_each(links_.size(), [this](rank_id peer) { hear(peer); });
  }

  /// Takes what has come from `peer`, or as much of it as a look may take.
  void hear(rank_id peer) noexcept {
    link& sender = links_[peer.index()];
    for (int reads = 0; sender.open; ++reads) {
      if (reads == most_reads) {
        // The bytes may have left the socket already, which reports nothing then.
        sender.has_rest = has_rest_ = true;
        return;
      }
      const ssize_t got = sender.socket.receive(sender.heard.room());
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return;
      if (got < 0) return hang_up(peer, meaning_of(errno));
      if (got == 0) return hang_up(peer, meaning_of(sender.failure));
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

  /// Returns the state that the end of a connection means, by an error or, if `number` is 0,
  /// without one. A process that ends closes its connections. If a host goes away, they only time
  /// out. The reset of a connection comes from a host whose process may live. Without a mesh it is
  /// taken for the end of the process all the same, because nobody goes on without the lost there.
  [[nodiscard]] rank_state meaning_of(int number) const noexcept {
    const bool was_reset = number == ECONNRESET || number == EPIPE;
    return number == 0 || (was_reset && !is_mesh_) ? rank_state::died : rank_state::lost;
  }

  void hang_up(rank_id peer, rank_state default_state) noexcept {
    link& sender = links_[peer.index()];
    sender.open = false;
    told_.drop(peer.index());
    watched_.remove(sender.socket.get());
    if (is_mesh_) {
      // A process that lives should not take this one for dead.
      if (default_state == rank_state::lost) sender.socket.reset_at_close();
      sender.socket = {};
    }
    learn(peer, default_state);
  }

  /// Stores the state of a rank, unless one is known. Rank 0 also notes it for the other ranks.
  void learn(rank_id rank, rank_state state) noexcept {
    if (membership::announce(states_[rank.index()], state) && me_.index() == 0) note(rank, state);
    if (std::exchange(links_[rank.index()].is_over, true)) return;
    try {
      for (std::uint32_t channel = 0; channel < readers_.size(); ++channel) {
        if (!readers_[channel].last_words) continue;
        for (const auto& message : readers_[channel].last_words(rank))
          told_.append(channel, message);
      }
    } catch (...) {
      give_up();
    }
  }

  /// Makes all ranks lost to this one, and this one to them: without memory for messages, they
  /// would wait for it.
  void give_up() noexcept {
    for (link& known : links_) known.is_over = true;
    for (std::size_t peer = 0; peer < links_.size(); ++peer)
      if (links_[peer].open) hang_up(rank_id{peer}, rank_state::lost);
  }

  void note(rank_id rank, rank_state state) noexcept {
    told_.note(static_cast<std::uint32_t>(rank.index()), static_cast<std::uint32_t>(state));
  }

  /// Sends as much of `told_` as the connections take.
  void pass_on() noexcept {
    if (!told_.is_behind()) return;
    for (std::size_t peer = 0; peer < links_.size(); ++peer) {
      link& receiver = links_[peer];
      if (!receiver.open) continue;
      const int failure = told_.send(peer, receiver.socket);
      // After EPIPE a read returns the end of the bytes, which has come before.
      if (is_mesh_ && failure != 0 && failure != EPIPE) receiver.failure = failure;
      if (is_mesh_ && told_.has_too_much_for(peer)) hang_up(rank_id{peer}, rank_state::lost);
    }
    told_.forget_sent();
  }

  /// The most reads of a connection in one look, so that no rank keeps another in it.
  static constexpr int most_reads = 256;

  home_process home_;
  rank_id me_;
  std::unique_ptr<state_word[]> states_;
  std::vector<link> links_;
  arrivals watched_;
  yielding_lock looking_;        ///< guards all below, and `links_`
  std::vector<reader> readers_;  ///< by channel
  news_outbox told_;
  bool is_mesh_ = false;
  bool has_rest_ = false;  ///< of any of the links
};

}  // namespace peerbus::detail
