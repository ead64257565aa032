// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <peerbus/communicator.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/window.hpp>

#include "support/clock.hpp"
#include "support/raw_ping_pong.hpp"

namespace ep_bench {

/// How long the least that one rank can tell another takes from rank 0 to rank 1, measured a little
/// at a time all through the run, as it drifts with the machine's other load. Over a transport that
/// reaches no memory by address that is a signal of its own, with nothing put before it.
template <class Transport>
class signal_floor {
 public:
  /// `crowded`: ranks may share cores, so that it takes long.
  signal_floor(peerbus::communicator<Transport>& comm, std::size_t blocks, bool crowded)
      : comm_{&comm}, window_{comm.make_window(0, 1)}, rounds_{crowded ? 20U : 100U} {
    one_way_ns_.reserve(blocks);
  }

  /// Collective.
  void measure_block() {
    comm_->barrier();
    if (comm_->size() > 1 && comm_->rank().index() < 2) {
      play(10);
      const auto start = bench::clock::now();
      play(rounds_);
      const auto span = bench::clock::now() - start;
      one_way_ns_.push_back(bench::nanoseconds(span) / static_cast<double>(2 * rounds_));
    }
  }

  /// By block; empty if there is but one rank.
  [[nodiscard]] const std::vector<double>& one_way_ns() const noexcept { return one_way_ns_; }

 private:
  static constexpr auto word = static_cast<peerbus::signal_id>(0);

  void play(std::size_t rounds) {
    const bool first = comm_->rank().index() == 0;
    const peerbus::rank_id partner{first ? 1U : 0U};
    const auto until = comm_->default_deadline();
    const auto raise = [&] { peerbus::check(window_.signal(partner, word, epoch_), "signalling"); };
    for (std::size_t i = 0; i < rounds; ++i) {
      ++epoch_;
      if (first) raise();
      window_.await(word, epoch_, until, partner);
      if (!first) raise();
    }
  }

  peerbus::communicator<Transport>* comm_;
  peerbus::window<Transport> window_;
  std::size_t rounds_;
  std::uint64_t epoch_ = 0;
  std::vector<double> one_way_ns_;
};

/// Where peers' memory loads and stores it is a bare cache line.
template <peerbus::direct_transport Transport>
class signal_floor<Transport> {
 public:
  /// `crowded`: ranks may share cores, so that the waiting side yields.
  signal_floor(peerbus::communicator<Transport>& comm, std::size_t blocks, bool crowded)
      : comm_{&comm},
        window_{comm.make_window(places * bench::raw_ping_pong::mailbox_bytes(0), 0)},
        rounds_{crowded ? 100U : 1000U} {
    for (std::size_t place = 0; place < places; ++place) {
      const std::size_t at = place * bench::raw_ping_pong::mailbox_bytes(0);
      players_.emplace_back(window_.local().data() + at, window_.peer(partner(comm)).data() + at,
                            crowded);
    }
    one_way_ns_.reserve(blocks);
  }

  /// Collective.
  void measure_block() {
    comm_->barrier();
    const std::size_t rank = comm_->rank().index();
    if (comm_->size() > 1 && rank < 2) {
      auto& player = players_[place_];
      place_ = (place_ + 1) % places;
      player.play(rank == 0, 10);
      const auto start = bench::clock::now();
      player.play(rank == 0, rounds_);
      const auto span = bench::clock::now() - start;
      one_way_ns_.push_back(bench::nanoseconds(span) / static_cast<double>(2 * rounds_));
    }
  }

  /// By block; empty if there is but one rank.
  [[nodiscard]] const std::vector<double>& one_way_ns() const noexcept { return one_way_ns_; }

 private:
  static constexpr std::size_t places = 16;  // See raw_ping_pong for why there are several.

  /// Of ranks 0 and 1; what it says on others is not used.
  static peerbus::rank_id partner(const peerbus::communicator<Transport>& comm) noexcept {
    return peerbus::rank_id{comm.rank().index() == 0 && comm.size() > 1 ? 1U : 0U};
  }

  peerbus::communicator<Transport>* comm_;
  peerbus::window<Transport> window_;
  std::vector<bench::raw_ping_pong> players_;
  std::size_t place_ = 0;
  std::size_t rounds_;
  std::vector<double> one_way_ns_;
};

}  // namespace ep_bench
