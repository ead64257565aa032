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
#include <peerbus/bootstrap/detail/meeting.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/system_error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus::detail {

/// The connections at rank 0's place that have not said a whole hello yet. Each may come from
/// anybody and carry anything, so their number and the time of each are bounded.
class callers {
 public:
  /// How long a caller may take until its hello is complete. A rank says it at once.
  static constexpr std::chrono::seconds most_time{5};

  /// A caller that belongs to the group.
  struct member {
    connection link;
    hello greeting;
  };

  /// `most` is the number of callers at a time; if more call, the eldest is hung up on.
  callers(meeting_place& place, std::size_t most) : place_{place}, most_{most} {}

  /// Appends what to wait for.
  void append_entries(std::vector<pollfd>& entries) const {
    for (const caller& present : callers_) entries.push_back({present.link.get(), POLLIN, 0});
  }
  [[nodiscard]] std::size_t size() const noexcept { return callers_.size(); }

  /// When the time of the eldest is over.
  [[nodiscard]] deadline next_end() const noexcept {
    return callers_.empty() ? deadline::never() : callers_.front().until;
  }

  /// Listens to those that have spoken, by `entries` as appended before. Hangs up on those whose
  /// time is over and on strangers. Returns the callers whose hello is complete.
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
      else if (heard == handshake::more && !present.until.expired())
        still.push_back(std::move(present));
      else
        ++strangers_;
    }
    callers_ = std::move(still);
    return members;
  }

  /// Takes up to 64 callers that wait at `listener`. No more at a time, because a crowd of
  /// strangers must not keep rank 0 from its deadline. Throws: `error` system.
  void accept_some(const unique_fd& listener) {
    for (int attempt = 0; attempt < 64; ++attempt) {
      unique_fd socket{::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
      if (socket) {
        add(std::move(socket));
        continue;
      }
      switch (errno) {
        case EMFILE:
        case ENFILE:
        case ENOBUFS:
        case ENOMEM:
          // Strangers must not use up what the ranks need.
          if (callers_.empty()) throw system_failure("accepting a rank's connection", errno);
          hang_up_on_eldest();
          break;
        case EBADF:
        case EINVAL:
        case ENOTSOCK:
        case EFAULT: throw system_failure("accepting a rank's connection", errno);
        case EAGAIN: return;
        default: break;  // That caller's connection is broken already; the next may be whole.
      }
    }
  }

  /// "; 3 callers had another secret, 5 were no ranks", for the text that says who is missing.
  [[nodiscard]] std::string describe_strangers() const {
    std::string text;
    if (other_secrets_ != 0)
      text += concat("; ", other_secrets_, other_secrets_ == 1 ? " caller" : " callers",
                     " had another secret");
    if (const auto others = strangers_ + callers_.size(); others != 0)
      text += concat("; ", others, others == 1 ? " caller was no rank" : " callers were no ranks");
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
    // A rank that is hung up on calls again.
    if (callers_.size() >= most_) hang_up_on_eldest();
    callers_.push_back({std::move(link), deadline::after(most_time)});
  }

  void hang_up_on_eldest() {
    callers_.pop_front();
    ++strangers_;
  }

  /// Returns `done` once the hello is complete.
  [[nodiscard]] static handshake hear(caller& from) noexcept {
    if (!from.has_shaken_hands) {
      if (const auto how = from.link.shake_hands(); how != handshake::done) return how;
      from.has_shaken_hands = true;
    }
    while (from.filled < from.greeting.size()) {
      const ssize_t got = from.link.receive(std::span{from.greeting}.subspan(from.filled));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return handshake::more;
      if (got <= 0) return handshake::closed;
      from.filled += static_cast<std::size_t>(got);
      if (!hello::may_begin(from.greeting, from.filled)) return handshake::stranger;
    }
    return handshake::done;
  }

  meeting_place& place_;
  std::size_t most_;
  std::deque<caller> callers_;
  std::size_t strangers_ = 0;
  std::size_t other_secrets_ = 0;
};

}  // namespace peerbus::detail
