// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/detail/run_rank.hpp>
#include <peerbus/bootstrap/detail/thread_world.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus {

/// Runs `f(bootstrap&)` as `n` ranks, each a thread of this process that ends before the call does.
/// All threads call the same `f` at the same time. A rank whose `f` throws is reported on stderr,
/// counts as status 1, and the waits of the others end with peer_dead.
/// Returns: the greatest status; values that a process could not exit with count as 255.
/// Throws: `error` invalid_argument if `n` is 0, system if not all threads could be started.
template <rank_function F>
[[nodiscard]] int run_threads(std::size_t n, F f) {
  detail::refuse_empty_world(n, "run_threads");
  const auto world = std::make_shared<detail::thread_world>(n);
  std::vector<std::unique_ptr<detail::thread_bootstrap>> boots;
  for (const rank_id rank : all_ranks{n})
    boots.push_back(std::make_unique<detail::thread_bootstrap>(world, rank));

  std::vector<int> statuses(n, 0);
  std::vector<std::thread> threads;
  threads.reserve(n);
  try {
    for (const rank_id rank : all_ranks{n})
      threads.emplace_back(
          [&f, &world, &boot = *boots[rank.index()], &status = statuses[rank.index()]] {
            status = detail::run_rank(f, boot);
            world->wake();
          });
  } catch (const std::exception& caught) {
    const std::size_t started = threads.size();
    for (std::size_t i = started; i < n; ++i) boots[i]->members()->announce(rank_state::failed);
    world->wake();
    for (std::thread& thread : threads) thread.join();
    throw error{errc::system,
                detail::concat("starting thread ", started, " of ", n, ": ", caught.what())};
  }
  for (std::thread& thread : threads) thread.join();
  return *std::max_element(statuses.begin(), statuses.end());
}

}  // namespace peerbus
