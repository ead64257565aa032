// SPDX-License-Identifier: MIT
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <deque>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/detail/connection.hpp>
#include <peerbus/bootstrap/detail/hello.hpp>
#include <peerbus/bootstrap/detail/rendezvous.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/system_error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus::detail {

/// The connections at rank 0's rendezvous place whose hello message is still incomplete. A
/// connection may come from any process and carry any bytes, so the number of connections and the
/// time of each are bounded.
class callers {
 public:
  /// The time within which the hello of a caller must be complete. A real rank sends it at once.
  static constexpr std::chrono::seconds most_time{5};

  /// A caller that belongs to the group.
  struct member {
    connection link;
    hello greeting;
  };

  /// Makes a list of at most `most` callers of `place`. If more call, the oldest is disconnected.
  callers(rendezvous_place& place, std::size_t most) : place_{place}, most_{most} {}

  /// Appends one entry for poll(2) per caller.
  void append_entries(std::vector<pollfd>& entries) const {
    for (const caller& present : callers_) entries.push_back({present.link.get(), POLLIN, 0});
  }
  [[nodiscard]] std::size_t size() const noexcept { return callers_.size(); }

  /// Returns the deadline of the hello of the oldest caller.
  [[nodiscard]] deadline next_end() const noexcept {
    return callers_.empty() ? deadline::never() : callers_.front().until;
  }

  /// Receives from the callers that are readable. `entries` are the polled entries of
  /// `append_entries`. Disconnects callers whose time is over and callers that are no ranks of the
  /// group.
  /// Returns: the callers whose hello is complete.
  [[nodiscard]] std::vector<member> hear_all(std::span<const pollfd> entries) {
    std::vector<member> members;
    std::deque<caller> still;
    for (std::size_t i = 0; i < callers_.size(); ++i) {
      caller& present = callers_[i];
      const auto heard = entries[i].revents == 0 ? handshake::more : hear(present);
      if (heard == handshake::done)
        members.push_back({std::move(present.link), hello::decode(present.greeting)});
      else if (heard == handshake::other_secret || heard == handshake::no_secret)
        ++other_secrets_;
      else if (heard == handshake::other_job)
        ++other_jobs_;
      else if (heard == handshake::more && !present.until.expired())
        still.push_back(std::move(present));
      else
        ++strangers_;
    }
    callers_ = std::move(still);
    return members;
  }

  /// Accepts up to 64 callers that wait at `listener`. The number is bounded, so that many callers
  /// cannot delay rank 0 beyond its deadline.
  /// Throws: `error` system.
  void accept_some(const unique_fd& listener) {
    for (int attempt = 0; attempt < 64; ++attempt) {
      auto socket = unique_fd::above_standard(
          ::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (socket) {
        add(std::move(socket));
        continue;
      }
      switch (errno) {
        case EMFILE:
        case ENFILE:
        case ENOBUFS:
        case ENOMEM: {
          // The system may say so although nobody waits.
          const int lacking = errno;
          if (pollfd waiting{listener.get(), POLLIN, 0}; ::poll(&waiting, 1, 0) == 0) return;
          // Strangers must not use up the descriptors and memory that the ranks need.
          if (callers_.empty()) throw system_failure("accepting a rank's connection", lacking);
          shortage_ = lacking;
          hang_up_on_eldest();
          break;
        }
        case EBADF:
        case EINVAL:
        case ENOTSOCK:
        case EFAULT: throw system_failure("accepting a rank's connection", errno);
        case EAGAIN: return;
        default: break;  // This caller's connection has failed already; the next may be intact.
      }
    }
  }

  /// Returns text such as "; 3 callers had another secret; 5 callers were no ranks", to be appended
  /// to the names of the missing ranks. The text also names a lack of descriptors or memory.
  [[nodiscard]] std::string describe_strangers() const {
    std::string text;
    if (other_secrets_ != 0)
      text += concat("; ", other_secrets_, other_secrets_ == 1 ? " caller" : " callers",
                     " had another secret");
    if (other_jobs_ != 0)
      text += concat("; ", other_jobs_, other_jobs_ == 1 ? " caller was" : " callers were",
                     " of another job");
    if (const auto others = strangers_ + callers_.size(); others != 0)
      text += concat("; ", others, others == 1 ? " caller was no rank" : " callers were no ranks");
    if (shortage_ != 0)
      text += concat("; rank 0 had to hang up on callers: ", describe_errno(shortage_));
    return text;
  }

 private:
  struct caller {
    connection link;
    deadline until;
    bool has_shaken_hands = false;
    hello::message greeting{};
    std::size_t filled = 0;
  };

  void add(unique_fd socket) {
    connection link = place_.admit(std::move(socket));
    if (!link) {
      ++strangers_;
      return;
    }
    // A rank that is disconnected here calls again.
    if (callers_.size() >= most_) hang_up_on_eldest();
    callers_.push_back({std::move(link), deadline::after(most_time)});
  }

  void hang_up_on_eldest() {
    callers_.pop_front();
    ++strangers_;
  }

  /// Advances the handshake and the hello of a caller.
  /// Returns: `done` once the hello is complete.
  [[nodiscard]] static handshake hear(caller& speaker) noexcept {
    if (!speaker.has_shaken_hands) {
      if (const auto how = speaker.link.shake_hands(); how != handshake::done) return how;
      speaker.has_shaken_hands = true;
    }
    while (speaker.filled < speaker.greeting.size()) {
      const ssize_t got = speaker.link.receive(std::span{speaker.greeting}.subspan(speaker.filled));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return handshake::more;
      if (got <= 0) return handshake::closed;
      speaker.filled += static_cast<std::size_t>(got);
      if (!hello::may_begin(speaker.greeting, speaker.filled)) return handshake::stranger;
    }
    return handshake::done;
  }

  rendezvous_place& place_;
  std::size_t most_;
  std::deque<caller> callers_;
  std::size_t strangers_ = 0;
  std::size_t other_secrets_ = 0;
  std::size_t other_jobs_ = 0;
  int shortage_ = 0;  ///< the errno because of which callers were disconnected, or 0
};

}  // namespace peerbus::detail
