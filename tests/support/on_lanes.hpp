// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <exception>
#include <thread>
#include <vector>

#include <peerbus/core/lane.hpp>

namespace test {

/// Runs `body(lane)` on `count` threads, the caller's among them. Throws what the lowest lane threw
/// that threw anything.
template <class Body>
void on_lanes(std::size_t count, Body body) {
  std::vector<std::exception_ptr> thrown(count);
  const auto guarded = [&](std::size_t i) {
    try {
      body(peerbus::lane{i, count});
    } catch (...) {
      thrown[i] = std::current_exception();
    }
  };
  std::vector<std::thread> others;
  for (std::size_t i = 1; i < count; ++i) others.emplace_back(guarded, i);
  guarded(0);
  for (std::thread& other : others) other.join();
  for (const std::exception_ptr& problem : thrown)
    if (problem) std::rethrow_exception(problem);
}

}  // namespace test
