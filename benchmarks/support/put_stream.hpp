// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include <peerbus/communicator.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/window.hpp>

#include "support/clock.hpp"

namespace bench {

/// Many messages from rank 0 to rank 1, a put each, then a signal, then rank 1's signal that it has
/// seen it.
struct stream_shape {
  std::size_t bytes;     ///< of a message, a multiple of 8
  std::size_t messages;  ///< before the signal
  std::size_t gap;       ///< bytes between two messages, at both ends; 0: they may be merged

  friend bool operator==(const stream_shape&, const stream_shape&) = default;
};

template <peerbus::transport Transport>
class put_stream {
 public:
  using communicator = peerbus::communicator<Transport>;

  /// Collective; the group has two ranks.
  put_stream(peerbus::communicator<Transport>& comm, const stream_shape& shape)
      : comm_{&comm},
        shape_{shape},
        window_{comm.make_window(shape.messages * (shape.bytes + shape.gap), 2)},
        sends_{comm.rank().index() == 0} {
    const auto words = window_.template local<std::uint64_t>();
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = sends_ ? content(i) : 0;
  }

  /// Collective. Returns: microseconds from the first put until rank 1's answer has come; on rank
  /// 0.
  [[nodiscard]] double play() {
    ++number_;
    const auto until = comm_->default_deadline();
    if (sends_)
      for (std::size_t i = 0; i < shape_.messages; ++i) write_number(i);
    comm_->barrier();
    const auto start = clock::now();
    if (sends_) {
      for (std::size_t i = 0; i < shape_.messages; ++i)
        peerbus::check(window_.put(receiver, at(i), window_.local().subspan(at(i), shape_.bytes)),
                       "put");
      peerbus::check(window_.signal(receiver, sent, number_), "signal");
      window_.await(seen, number_, until, receiver);
    } else {
      window_.await(sent, number_, until, sender);
      peerbus::check(window_.signal(sender, seen, number_), "signal");
    }
    const double spent = microseconds(clock::now() - start);
    for (std::size_t i = 0; i < shape_.messages; ++i) right_ = right_ && has_number(i);
    return spent;
  }

  /// Whether all messages so far had their number, and all bytes of the last ones are right.
  [[nodiscard]] bool right() const noexcept {
    const auto words = window_.template local<std::uint64_t>();
    const std::size_t stride = (shape_.bytes + shape_.gap) / sizeof(std::uint64_t);
    bool right = right_;
    for (std::size_t i = 0; i < words.size(); ++i) {
      const std::size_t in_message = i % stride;
      if (in_message == 0) continue;  // The number.
      const bool between = in_message * sizeof(std::uint64_t) >= shape_.bytes;
      right = right && words[i] == (between && !sends_ ? 0 : content(i));
    }
    return right;
  }

 private:
  static constexpr peerbus::rank_id sender{0};
  static constexpr peerbus::rank_id receiver{1};
  static constexpr auto sent = static_cast<peerbus::signal_id>(0);
  static constexpr auto seen = static_cast<peerbus::signal_id>(1);

  static std::uint64_t content(std::size_t i) noexcept { return 0x9e37'79b9'7f4a'7c15U * (i + 1); }
  [[nodiscard]] std::size_t at(std::size_t message) const noexcept {
    return message * (shape_.bytes + shape_.gap);
  }
  void write_number(std::size_t message) noexcept {
    std::memcpy(window_.local().data() + at(message), &number_, sizeof number_);
  }
  [[nodiscard]] bool has_number(std::size_t message) const noexcept {
    return std::memcmp(window_.local().data() + at(message), &number_, sizeof number_) == 0;
  }

  communicator* comm_;
  stream_shape shape_;
  peerbus::window<Transport> window_;
  bool sends_;
  std::uint64_t number_ = 0;
  bool right_ = true;
};

}  // namespace bench
