// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <peerbus/communicator.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/window.hpp>

#include "support/clock.hpp"

namespace bench {

/// A small payload with its signal from one rank to the other and back. The receiver reads the
/// payload once `wait` has returned, as the contract says; it polls no memory of its own accord.
template <peerbus::transport Transport>
class put_ping_pong {
 public:
  using communicator = peerbus::communicator<Transport>;

  /// Collective; the group has two ranks.
  put_ping_pong(peerbus::communicator<Transport>& comm, std::size_t bytes)
      : comm_{&comm},
        bytes_{bytes},
        landing_at_{peerbus::align_up(bytes, peerbus::cache_line_bytes)},
        window_{comm.make_window(2 * landing_at_, 1)},
        partner_{1 - comm.rank().index()} {}

  /// Collective. Returns: microseconds one way, half of each round trip; on rank 0.
  [[nodiscard]] std::vector<double> play(std::size_t rounds) {
    std::vector<double> one_way_us;
    one_way_us.reserve(rounds);
    const bool first = comm_->rank().index() == 0;
    const auto until = comm_->default_deadline();
    comm_->barrier();
    for (std::size_t i = 0; i < rounds; ++i) {
      ++number_;
      const auto start = clock::now();
      if (first) send();
      window_.await(word, number_, until, partner_);
      right_ = right_ && arrived();
      if (!first) send();
      one_way_us.push_back(microseconds(clock::now() - start) / 2);
    }
    return one_way_us;
  }

  /// Whether every payload so far arrived as it was sent.
  [[nodiscard]] bool right() const noexcept { return right_; }

 private:
  static constexpr auto word = static_cast<peerbus::signal_id>(0);

  [[nodiscard]] std::byte content(std::size_t i) const noexcept {
    return static_cast<std::byte>(number_ + i);
  }
  void send() {
    const auto source = window_.local().first(bytes_);
    for (std::size_t i = 0; i < bytes_; ++i) source[i] = content(i);
    peerbus::check(window_.put_signal(partner_, landing_at_, source, word, number_), "put_signal");
  }
  [[nodiscard]] bool arrived() const noexcept {
    const auto landing = window_.local().subspan(landing_at_, bytes_);
    for (std::size_t i = 0; i < bytes_; ++i)
      if (landing[i] != content(i)) return false;
    return true;
  }

  communicator* comm_;
  std::size_t bytes_;
  std::size_t landing_at_;
  peerbus::window<Transport> window_;
  peerbus::rank_id partner_;
  std::uint64_t number_ = 0;
  bool right_ = true;
};

}  // namespace bench
