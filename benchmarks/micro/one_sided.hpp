// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>

#include <benchmark/benchmark.h>

#include <peerbus/communicator.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>

#include "micro/group.hpp"

namespace micro {

/// Rank 0 works on the part of rank 1, `bytes` long with a signal 0, while rank 1 sleeps; in the
/// end rank 1 says whether all is right. `prepare(window)` comes first, on both ranks.
template <class Transport, class Prepare, class Work, class Right>
found one_sided(benchmark::State& state, std::size_t bytes, Prepare prepare, Work work,
                Right right) {
  constexpr peerbus::signal_id done{1};
  return run_group<Transport>(
      state, 2, [&](peerbus::communicator<Transport>& comm, std::size_t operations, found& result) {
        auto window = comm.make_window(bytes, 2);
        prepare(window);
        comm.barrier();
        if (comm.rank() == peerbus::rank_id{0}) {
          work(window, operations, result);
          peerbus::check(window.signal(peerbus::rank_id{1}, done, 1), "signal");
        } else {
          window.await(done, 1, peerbus::deadline::after(std::chrono::minutes{10}),
                       peerbus::rank_id{0});
          result.payload_right = right(window, operations);
        }
      });
}

template <class Transport, class Work, class Right>
found one_sided(benchmark::State& state, std::size_t bytes, Work work, Right right) {
  return one_sided<Transport>(state, bytes, [](auto&) {}, work, right);
}

}  // namespace micro
