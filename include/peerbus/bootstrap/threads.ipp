// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <exception>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

#include <peerbus/bootstrap/detail/run_rank.hpp>
#include <peerbus/bootstrap/detail/thread_world.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/bootstrap/threads.hpp>
#include <peerbus/core/cores.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::detail {

PEERBUS_INLINE int run_as_threads(std::size_t n, rank_body body) {
  refuse_bad_world(n, "run_threads");
  const auto world = std::make_shared<thread_world>(n);
  const std::size_t cores = usable_cores();  // Counted before any rank may pin itself.
  std::vector<std::unique_ptr<thread_bootstrap>> boots;
  for (const rank_id rank : all_ranks{n})
    boots.push_back(std::make_unique<thread_bootstrap>(world, rank, cores));

  std::vector<int> statuses(n, 0);
  std::vector<std::thread> threads;
  threads.reserve(n);
  try {
    for (const rank_id rank : all_ranks{n})
      threads.emplace_back(
          [&body, &world, &boot = *boots[rank.index()], &status = statuses[rank.index()]] {
            status = run_rank(body, boot);
            world->wake();
          });
  } catch (const std::exception& caught) {
    const std::size_t started = threads.size();
    for (std::size_t i = started; i < n; ++i) boots[i]->members()->announce(rank_state::failed);
    world->wake();
    for (std::thread& thread : threads) thread.join();
    throw error{errc::system, concat("starting thread ", started, " of ", n, limits_of_processes,
                                     ": ", caught.what())};
  }
  for (std::thread& thread : threads) thread.join();
  return *std::max_element(statuses.begin(), statuses.end());
}

}  // namespace peerbus::detail
