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

/// The rank states of a group whose ranks share no memory. Each non-zero rank sends its final state
/// on a `watch` connection to rank 0. If the connection ends without a state, the rank has died or
/// is out of reach. Rank 0 passes all states on to the other ranks. In a mesh, each rank has such a
/// connection to every other rank. Only this connection brings news about that rank, and it carries
/// messages as well.
///
/// All of this happens inside `look`, `tell` and `publish`. While rank 0 does not look, and after
/// it has left, it passes nothing on. The state of each rank is sent at most once.
///
/// In a mesh, only a connection that its other end has closed means that the process died. If a
/// connection fails, the process may live, and its rank is lost. A rank that sends malformed news
/// or for which too many bytes wait is lost too. This rank then resets the connection, so that the
/// other rank learns that it has lost this rank.
///
/// Cost of a poll: one system call if nothing has arrived. Otherwise the connection decrypts, and
/// OpenSSL may allocate. This happens under a lock, for which a thread that tells waits, and a
/// thread that looks does not.
class tcp_failure_detector final : public membership_source, public bulletin {
 public:
  using state_word = membership::state_word;

  /// Makes the detector of rank `me`. `links` are its connections by rank; some may be empty.
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
  /// Closes the connections. First waits up to 2 s until they take the last news, and up to 200 ms
  /// more until the hosts of the other ranks have acknowledged it. In a child by fork, which shares
  /// the connections with its parent, only closes them.
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

  /// Adds the connections `more`, by rank, so that this rank has one to each rank that runs. The
  /// other ranks do so at about the same time, and publish only once all have done so.
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
    int failure = 0;        ///< the errno of a failed send, which no read reports afterwards
    bool has_rest = false;  ///< whether more bytes may have arrived than one look reads
    news_stream heard;
    std::size_t pieces = 0;
    bool is_over = false;  ///< whether the rank has ended
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

  /// Reads the bytes that have arrived from `peer`, up to the limit of one look.
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

  /// Returns the state that the end of a connection means. `number` is its errno, or 0 if it ended
  /// without an error. A process that ends closes its connections. If a host goes away, they only
  /// time out. A reset comes from a host whose process may live. In a group without a mesh, a reset
  /// still counts as the end of the process, because no rank continues without a lost rank there.
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

  /// Stores the state of a rank, unless a state is known. Rank 0 also notes it for the other ranks.
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

  /// Makes all ranks lost to this rank, and this rank lost to them. Called if there is no memory
  /// for messages, because the other ranks would wait for these messages.
  void give_up() noexcept {
    for (link& known : links_) known.is_over = true;
    for (std::size_t peer = 0; peer < links_.size(); ++peer)
      if (links_[peer].open) hang_up(rank_id{peer}, rank_state::lost);
  }

  void note(rank_id rank, rank_state state) noexcept {
    told_.note(static_cast<std::uint32_t>(rank.index()), static_cast<std::uint32_t>(state));
  }

  /// Sends as many bytes of `told_` as the connections take.
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

  /// The largest number of reads of a connection in one look. Without it, a rank that sends without
  /// a pause could keep this rank in a look.
  static constexpr int most_reads = 256;

  home_process home_;
  rank_id me_;
  std::unique_ptr<state_word[]> states_;
  std::vector<link> links_;
  arrivals watched_;
  yielding_lock looking_;        ///< guards the members below, and `links_`
  std::vector<reader> readers_;  ///< the reader of each channel
  news_outbox told_;
  bool is_mesh_ = false;
  bool has_rest_ = false;  ///< whether any of the links has a rest
};

}  // namespace peerbus::detail
