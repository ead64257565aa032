// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include <peerbus/communicator.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/concept.hpp>

#include "support/ranks.hpp"

namespace test {

/// Each rank puts `bytes` bytes to each, three times, and checks what it gets. Throws: as windows,
/// after 3 s without a signal.
template <peerbus::transport Transport>
void put_to_all(peerbus::communicator<Transport>& comm, std::size_t bytes,
                peerbus::traffic_class traffic = peerbus::traffic_class::latency) {
  const std::size_t ranks = comm.size();
  const auto content = [](std::size_t place, peerbus::rank_id from, peerbus::rank_id to,
                          std::uint64_t round) {
    return static_cast<std::byte>(place * 7 + from.index() * 31 + to.index() * 3 + round);
  };
  auto win = comm.make_window({.bytes = 2 * ranks * bytes, .signals = ranks, .traffic = traffic});
  const auto id_of = [](peerbus::rank_id rank) {
    return static_cast<peerbus::signal_id>(rank.index());
  };
  for (std::uint64_t round = 1; round < 4; ++round) {
    for (const peerbus::rank_id to : peerbus::all_ranks{ranks}) {
      const auto source = win.local().subspan((ranks + to.index()) * bytes, bytes);
      for (std::size_t i = 0; i < bytes; ++i) source[i] = content(i, comm.rank(), to, round);
      peerbus::check(
          win.put_signal(to, comm.rank().index() * bytes, source, id_of(comm.rank()), round),
          "put");
    }
    for (const peerbus::rank_id from : peerbus::all_ranks{ranks}) {
      peerbus::check(
          win.wait(id_of(from), round, peerbus::deadline::after(std::chrono::seconds{3}), from),
          "wait");
      const auto came = win.local().subspan(from.index() * bytes, bytes);
      for (std::size_t i = 0; i < bytes; ++i)
        expect(came[i] == content(i, from, comm.rank(), round), "byte ", i, " of ", bytes, " from ",
               from.index(), " in round ", round);
    }
    comm.barrier();
  }
}

}  // namespace test
