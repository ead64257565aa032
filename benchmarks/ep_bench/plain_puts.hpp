// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <peerbus/communicator.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/read_once.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/window.hpp>

#include "ep_bench/oracle.hpp"
#include "ep_bench/plain_floor.hpp"
#include "ep_bench/random.hpp"
#include "support/pages.hpp"

namespace ep_bench {

/// The least that any dispatch and combine over the same transport must do where peers' memory
/// cannot be stored to: to each peer as many bytes as the operation brings there, in one put from
/// registered memory, and a signal behind it; then the signals of all peers. Nothing is quantised,
/// placed or summed. What stays on its rank is copied.
template <class Transport>
class plain_puts final : public plain_floor {
 public:
  /// `row_bytes`: that a row brings with it in dispatch; `output_bytes`: in combine. Collective.
  plain_puts(peerbus::communicator<Transport>& comm, const oracle& truth, std::size_t row_bytes,
             std::size_t output_bytes)
      : plain_puts{comm, rows_between(truth, comm.size()), row_bytes, output_bytes} {}

  void recall() const noexcept override { peerbus::read_once(window_.local().last(landing_)); }

  /// There is one kind of puts.
  void dispatch(store_kind /*stores*/) override { move(there_); }
  void combine(store_kind /*stores*/) override { move(back_); }

  /// Collective. Returns: what did not arrive as it was sent, or nothing.
  [[nodiscard]] std::string check() {
    std::string found = check(there_, "dispatch");
    const std::string back = check(back_, "combine");
    return found.empty() ? back : found;
  }

  /// How many rows this rank sends.
  [[nodiscard]] std::size_t rows() const noexcept override { return rows_; }

 private:
  using matrix = std::vector<std::vector<std::size_t>>;

  struct part {
    peerbus::rank_id peer;
    std::size_t source;  ///< offset in this rank's part
    std::size_t target;  ///< offset in the peer's
    std::size_t bytes;
  };
  /// One of the two operations.
  struct operation {
    peerbus::signal_id first_signal;  ///< of rank 0; one for each rank
    std::vector<part> out;            ///< to the peers, in the order in which operations visit them
    std::vector<part> in;             ///< from them; `target` is here
    part own;
    std::uint64_t epoch = 0;
  };

  plain_puts(peerbus::communicator<Transport>& comm, const matrix& rows, std::size_t row_bytes,
             std::size_t output_bytes)
      : comm_{&comm},
        rows_{sum(rows[comm.rank().index()])},
        landing_{peerbus::align_up(most_to_one(rows, row_bytes, output_bytes),
                                   peerbus::cache_line_bytes)},
        window_{comm.make_window(2 * landing_, 2 * comm.size())} {
    const auto back_rows = transposed(rows);
    there_ = operation_of(rows, row_bytes, 0);
    back_ = operation_of(back_rows, output_bytes, comm.size());
    fill(comm.rank(), landing_, window_.local().last(landing_));
  }

  static matrix rows_between(const oracle& truth, std::size_t ranks) {
    matrix rows(ranks, std::vector<std::size_t>(ranks));
    for (std::size_t from = 0; from < ranks; ++from)
      for (const oracle::sent_row& sent : truth.rows_sent(from)) ++rows[from][sent.rank];
    return rows;
  }
  static matrix transposed(const matrix& of) {
    matrix result(of.size(), std::vector<std::size_t>(of.size()));
    for (std::size_t i = 0; i < of.size(); ++i)
      for (std::size_t j = 0; j < of.size(); ++j) result[j][i] = of[i][j];
    return result;
  }
  static std::size_t sum(const std::vector<std::size_t>& of) {
    std::size_t all = 0;
    for (const std::size_t one : of) all += one;
    return all;
  }
  /// The most bytes that one rank sends or gets in either operation.
  static std::size_t most_to_one(const matrix& rows, std::size_t row_bytes,
                                 std::size_t output_bytes) {
    std::size_t most = 0;
    for (const matrix& each : {rows, transposed(rows)})
      for (const auto& line : each) most = std::max(most, sum(line));
    return most * std::max(row_bytes, output_bytes);
  }

  /// `rows`[from][to]; what a rank sends lies in the order of ranks in its source, what it gets in
  /// its landing area.
  operation operation_of(const matrix& rows, std::size_t bytes, std::size_t first_signal) const {
    const std::size_t me = comm_->rank().index();
    const auto part_to = [&](std::size_t from, std::size_t to) {
      part one{peerbus::rank_id{from == me ? to : from}, landing_, 0, rows[from][to] * bytes};
      for (std::size_t r = 0; r < to; ++r) one.source += rows[from][r] * bytes;
      for (std::size_t r = 0; r < from; ++r) one.target += rows[r][to] * bytes;
      return one;
    };
    operation made{static_cast<peerbus::signal_id>(first_signal), {}, {}, part_to(me, me), 0};
    for (const peerbus::rank_id peer : comm_->peers()) {
      made.out.push_back(part_to(me, peer.index()));
      made.in.push_back(part_to(peer.index(), me));
    }
    return made;
  }

  /// What lies in the source of `rank` from `offset` on.
  static void fill(peerbus::rank_id rank, std::size_t offset, std::span<std::byte> bytes) noexcept {
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const std::uint64_t word = mix(mix(rank.index()) + (offset + i) / sizeof word);
      bytes[i] = static_cast<std::byte>(word >> (8 * ((offset + i) % sizeof word)));
    }
  }
  static peerbus::signal_id signal_of(const operation& which, peerbus::rank_id from) noexcept {
    return static_cast<peerbus::signal_id>(peerbus::index(which.first_signal) + from.index());
  }

  void move(operation& which) {
    ++which.epoch;
    const auto all = window_.local();
    for (const part& to : which.out)
      peerbus::check(window_.put_signal(to.peer, to.target, all.subspan(to.source, to.bytes),
                                        signal_of(which, comm_->rank()), which.epoch),
                     "a plain put");
    std::memcpy(all.data() + which.own.target, all.data() + which.own.source, which.own.bytes);
    const auto until = comm_->default_deadline();
    for (const part& from : which.in)
      window_.await(signal_of(which, from.peer), which.epoch, until, from.peer);
  }

  std::string check(operation& which, const char* name) {
    const auto landing = window_.local().first(landing_);
    std::fill(landing.begin(), landing.end(), std::byte{0xff});
    comm_->barrier();
    move(which);
    comm_->barrier();
    std::string found;
    const auto compare = [&](const part& from) {
      std::vector<std::byte> expected(from.bytes);
      fill(from.peer, from.source, expected);
      if (found.empty() && !std::ranges::equal(expected, landing.subspan(from.target, from.bytes)))
        found = peerbus::concat("the plain puts of ", name, " brought ", comm_->rank(),
                                " other bytes than ", from.peer, " sent");
    };
    for (const part& from : which.in) compare(from);
    compare(which.own);
    return found;
  }

  peerbus::communicator<Transport>* comm_;
  std::size_t rows_;
  std::size_t landing_;  ///< bytes of the landing area, which comes first, and of the source
  peerbus::window<Transport> window_;
  operation there_;
  operation back_;
};

}  // namespace ep_bench
