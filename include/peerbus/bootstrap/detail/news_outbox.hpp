// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <peerbus/bootstrap/detail/connection.hpp>
#include <peerbus/bootstrap/detail/news_stream.hpp>

namespace peerbus::detail {

/// The news that a rank tells others: one queue of bytes for all connections. Each connection has
/// taken a part of it. The part that all have taken is forgotten.
class news_outbox {
 public:
  explicit news_outbox(std::size_t rank_count) : sent_(rank_count, takes_nothing) { reserve(0); }

  /// Adds the receiver `peer`, which gets the news that are added from now on.
  void add(std::size_t peer) noexcept { sent_[peer] = told_.size(); }
  /// Removes the receiver `peer`, which gets no more news.
  void drop(std::size_t peer) noexcept { sent_[peer] = takes_nothing; }

  /// Tells the state of a rank. There is room for one state of each rank.
  void note(std::uint32_t subject, std::uint32_t state) noexcept {
    const auto head = news::encode_head(subject, state);
    told_.insert(told_.end(), head.begin(), head.end());
    is_behind_ = true;
  }
  /// Tells a message.
  /// Throws: std::bad_alloc; nothing is told then.
  void append(std::uint32_t channel, std::span<const std::byte> message) {
    reserve(news::head_bytes + message.size());
    note(channel, news::is_message | static_cast<std::uint32_t>(message.size()));
    told_.insert(told_.end(), message.begin(), message.end());
  }

  /// Returns whether there may be bytes to send.
  [[nodiscard]] bool is_behind() const noexcept { return is_behind_; }
  /// Returns whether more bytes wait for `peer` than for a rank that still reads.
  [[nodiscard]] bool has_too_much_for(std::size_t peer) const noexcept {
    return waiting_for(peer) > most_waiting;
  }

  /// Sends as many bytes as the connection takes.
  /// Returns: 0, or the errno of a failure. After a failure, nothing more is sent to `peer`.
  [[nodiscard]] int send(std::size_t peer, connection& to) noexcept {
    while (waiting_for(peer) != 0) {
      const ssize_t put = to.send(std::span{told_}.subspan(sent_[peer]));
      if (put >= 0) {
        sent_[peer] += static_cast<std::size_t>(put);
      } else if (errno == EAGAIN) {
        return 0;
      } else if (errno != EINTR) {
        drop(peer);
        return errno;
      }
    }
    return 0;
  }

  /// Forgets the bytes that all receivers have taken, once they are half of the queue, so that each
  /// byte moves once.
  void forget_sent() noexcept {
    std::size_t least = told_.size();
    for (const std::size_t sent : sent_) least = std::min(least, sent);
    is_behind_ = least != told_.size();
    if (least < told_.size() - least) return;
    told_.erase(told_.begin(), told_.begin() + static_cast<std::ptrdiff_t>(least));
    for (std::size_t& sent : sent_)
      if (sent != takes_nothing) sent -= least;
  }

 private:
  static constexpr std::size_t takes_nothing = std::numeric_limits<std::size_t>::max();

  /// The largest number of bytes that wait for a rank that reads. It is far more than the last
  /// words about hundreds of ranks that end at once.
  static constexpr std::size_t most_waiting = std::size_t{64} << 20U;

  [[nodiscard]] std::size_t waiting_for(std::size_t peer) const noexcept {
    return sent_[peer] == takes_nothing ? 0 : told_.size() - sent_[peer];
  }

  /// Makes room for `bytes`, and for the state of each rank, so that `note` need not allocate.
  void reserve(std::size_t bytes) {
    const std::size_t least = told_.size() + bytes + news::head_bytes * sent_.size();
    if (least > told_.capacity()) told_.reserve(std::max(least, 2 * told_.capacity()));
  }

  std::vector<std::byte> told_;
  std::vector<std::size_t> sent_;  ///< [ranks]: the number of bytes of `told_` that the rank took
  bool is_behind_ = false;
};

}  // namespace peerbus::detail
