// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <peerbus/communicator.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/window.hpp>

#include "support/clock.hpp"
#include "support/numbered_message.hpp"
#include "support/raw_ping_pong.hpp"

namespace put_bench {

/// Whether the receiver looks at the signal or flag only, or reads the payload behind it.
enum class receiver { sees_signal, reads_payload };

/// One of two ranks that load and store in each other's memory, for payloads of one size: what
/// peerbus does there, and the same by plain stores in the same window.
///
/// How far a cache line travels depends on its address, so each block has another place than the
/// one before.
template <peerbus::direct_transport Transport>
class memory_side {
 public:
  /// Collective. `bytes`: a multiple of 8. `crowded`: the ranks may share a core.
  memory_side(peerbus::communicator<Transport>& comm, std::size_t bytes, bool crowded)
      : first_{comm.rank().index() == 0},
        peer_{1 - comm.rank().index()},
        mailbox_{bench::raw_ping_pong::mailbox_bytes(bytes)},
        window_{comm.make_window(3 * places * mailbox_, places)},
        epochs_(places),
        message_{bytes} {
    for (std::size_t place = 0; place < places; ++place) {
      const std::size_t at = place * mailbox_;
      raw_.emplace_back(window_.local().data() + at, window_.peer(peer_).data() + at, crowded);
    }
  }

  ///@{
  /// Collective: `rounds` round trips. Returns: the mean microseconds one way.
  /// The flag's line alone.
  double flag(std::size_t rounds) {
    return time(rounds, [&] { raw_[place_].play(first_, rounds); });
  }
  /// A copy of the payload, then a flag.
  double copy_and_flag(std::size_t rounds, receiver who) {
    return time(rounds, [&] {
      raw_[place_].play(
          first_, rounds,
          [&](std::uint64_t epoch) { return std::as_bytes(message_.numbered(epoch)); },
          [&](const std::byte* arrived, std::uint64_t epoch) {
            if (who == receiver::reads_payload) look(arrived, epoch);
          });
    });
  }
  double put_signal(std::size_t rounds, receiver who) {
    // One for each kind of receiver: the peer may be in its next block while this one is checked.
    const std::size_t at =
        (places + 2 * place_ + (who == receiver::reads_payload ? 1 : 0)) * mailbox_;
    const std::byte* const arrived = window_.local().data() + at;
    const double spent = time(rounds, [&] {
      play(
          rounds,
          [&](peerbus::signal_id id, std::uint64_t epoch) {
            return window_.put_signal(peer_, at, message_.numbered(epoch), id, epoch);
          },
          [&](std::uint64_t epoch) {
            if (who == receiver::reads_payload) look(arrived, epoch);
          });
    });
    right_ = right_ && message_.is_all_of(arrived, epochs_[place_]);
    return spent;
  }
  /// A signal without payload.
  double signal(std::size_t rounds) {
    return time(rounds, [&] {
      play(
          rounds,
          [&](peerbus::signal_id id, std::uint64_t epoch) {
            return window_.signal(peer_, id, epoch);
          },
          [](std::uint64_t) {});
    });
  }
  ///@}

  /// Chooses the place of the next block, by its number.
  void choose_place(std::size_t block) noexcept { place_ = block % places; }
  [[nodiscard]] bool right() const noexcept { return right_; }

 private:
  static constexpr std::size_t places = 16;

  template <class Body>
  static double time(std::size_t rounds, Body&& body) {
    const auto start = bench::clock::now();
    body();
    return bench::microseconds(bench::clock::now() - start) / static_cast<double>(2 * rounds);
  }

  template <class Send, class Look>
  void play(std::size_t rounds, Send&& send, Look&& see) {
    // One for the block: the clock is not part of what is measured.
    const auto until = peerbus::deadline::after(std::chrono::seconds{30});
    const auto id = static_cast<peerbus::signal_id>(place_);
    std::uint64_t& epoch = epochs_[place_];
    for (std::size_t i = 0; i < rounds; ++i) {
      ++epoch;
      if (first_) peerbus::check(send(id, epoch), "sending");
      peerbus::check(window_.wait(id, epoch, until, peer_), "wait");
      see(epoch);
      if (!first_) peerbus::check(send(id, epoch), "sending");
    }
  }

  void look(const std::byte* arrived, std::uint64_t epoch) noexcept {
    right_ = right_ && message_.is(arrived, epoch);
  }

  bool first_;
  peerbus::rank_id peer_;
  std::size_t mailbox_;
  peerbus::window<Transport> window_;
  std::vector<bench::raw_ping_pong> raw_;
  std::vector<std::uint64_t> epochs_;
  std::size_t place_ = 0;
  bench::numbered_message message_;
  bool right_ = true;
};

}  // namespace put_bench
