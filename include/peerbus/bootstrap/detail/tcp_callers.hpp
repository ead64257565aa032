// SPDX-License-Identifier: MIT
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/detail/tcp_handshake.hpp>
#include <peerbus/bootstrap/detail/tcp_socket.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/system_error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus::detail {

/// Those who have called at rank 0's port and not yet proved that they belong to the group. They
/// may be anybody and say anything: each gets a few hundred bytes of memory, a few seconds, and one
/// digest of processor time, and there are only so many at once.
class tcp_callers {
 public:
  /// How long a caller may take for its hello, which a rank says at once.
  static constexpr std::chrono::seconds most_time{5};

  /// A caller that has proved itself.
  struct member {
    unique_fd socket;
    tcp_hello said;
  };

  tcp_callers(const group_secret& secret, std::size_t most) : secret_{secret}, most_{most} {}

  /// Appends what to wait for.
  void append_entries(std::vector<pollfd>& entries) const {
    for (const caller& one : callers_) entries.push_back({one.socket.get(), POLLIN, 0});
  }
  [[nodiscard]] std::size_t size() const noexcept { return callers_.size(); }

  /// When the first of them has had its time.
  [[nodiscard]] deadline next_end() const noexcept {
    return callers_.empty() ? deadline::never() : callers_.front().until;
  }

  /// Listens to those that `entries`, as appended before, say have spoken; hangs up on those whose
  /// time is over and on those that speak wrongly. Returns: who has proved itself.
  [[nodiscard]] std::vector<member> hear_all(std::span<const pollfd> entries) {
    std::vector<member> proved;
    std::deque<caller> still;
    for (std::size_t i = 0; i < callers_.size(); ++i) {
      caller& one = callers_[i];
      const bool waits = entries[i].revents == 0 || hear(one);
      if (waits && !one.until.expired()) {
        still.push_back(std::move(one));
      } else if (one.heard < one.said.size() || !has_magic(one.said)) {
        ++strangers_;
      } else if (!answer(one)) {
        ++other_secrets_;
      } else {
        proved.push_back({std::move(one.socket), tcp_hello::decode(one.said)});
      }
    }
    callers_ = std::move(still);
    return proved;
  }

  /// Takes those that wait at `listener`, and challenges each. Some at a time, so that a crowd of
  /// strangers does not keep rank 0 from those it has. Throws: `error` system.
  void accept_some(const unique_fd& listener) {
    for (int some = 0; some < 64; ++some) {
      unique_fd socket{::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
      if (socket) {
        challenge_caller(std::move(socket));
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
    unique_fd socket;
    challenge::message challenged;
    tcp_hello::message said;
    std::size_t heard = 0;
    deadline until;
  };

  void challenge_caller(unique_fd socket) {
    challenge asked;
    asked.has_secret = secret_.given();
    fill_random(asked.nonce);
    const auto message = asked.encode();
    // A fresh connection takes these few bytes whole.
    if (::send(socket.get(), message.data(), message.size(), MSG_DONTWAIT | MSG_NOSIGNAL) !=
        static_cast<ssize_t>(message.size())) {
      ++strangers_;
      return;
    }
    // A rank that is hung up on calls again; of too many silent callers the eldest is none.
    if (callers_.size() >= most_) hang_up_on_eldest();
    callers_.push_back({std::move(socket), message, {}, 0, deadline::after(most_time)});
  }

  void hang_up_on_eldest() {
    callers_.pop_front();
    ++strangers_;
  }

  /// Returns: whether the caller has more to say. If not, and its hello is not whole, it is nobody.
  static bool hear(caller& one) noexcept {
    const ssize_t got = ::recv(one.socket.get(), one.said.data() + one.heard,
                               one.said.size() - one.heard, MSG_DONTWAIT);
    if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    one.heard += static_cast<std::size_t>(got);
    const std::size_t known = std::min(one.heard, tcp_magic.size());
    const bool of_us =
        std::equal(tcp_magic.begin(), tcp_magic.begin() + static_cast<std::ptrdiff_t>(known),
                   one.said.begin());
    return got != 0 && of_us && one.heard < one.said.size();
  }

  /// Tells the caller whether its proof is right, and if so proves the same in turn.
  [[nodiscard]] bool answer(const caller& one) const noexcept {
    const auto expected = secret_.proof_of_rank(one.challenged, one.said);
    const bool right =
        equal_in_constant_time(std::span{one.said}.subspan(tcp_hello::proof_at), expected);
    const auto message = right ? verdict::encode(verdict::kind::welcome,
                                                 secret_.proof_of_rank_0(one.challenged, one.said))
                               : verdict::encode(verdict::kind::other_secret, {});
    // A rank that is gone already shows by its closed connection.
    (void)!::send(one.socket.get(), message.data(), message.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    return right;
  }

  const group_secret& secret_;
  std::size_t most_;
  std::deque<caller> callers_;
  std::size_t strangers_ = 0;
  std::size_t other_secrets_ = 0;
};

}  // namespace peerbus::detail
