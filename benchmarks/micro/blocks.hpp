// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "micro/group.hpp"
#include "support/clock.hpp"
#include "support/statistics.hpp"

namespace micro {

/// Runs `operations` of each of `contenders` in short blocks that take turns, so that all meet the
/// same moods of the machine. A contender is called with the number of operations of a block; the
/// last one is what is measured, the others are its references. The `parts` of an operation are
/// what a time is given for (2 for the one-way time of a round trip).
template <class... Contenders>
void alternate(std::size_t operations, double parts, found& result, Contenders&&... contenders) {
  constexpr std::size_t block = 1000;
  constexpr std::size_t count = sizeof...(Contenders);
  static_assert(count <= found::most_contenders);
  std::array<std::vector<double>, count> per_part;
  double last = 0;
  for (std::size_t left = operations; left > 0;) {
    const std::size_t size = std::min(left, block);
    left -= size;
    std::size_t which = 0;
    const auto time = [&](auto& run) {
      const auto start = bench::clock::now();
      run(size);
      last = bench::nanoseconds(bench::clock::now() - start);
      per_part[which++].push_back(last / (static_cast<double>(size) * parts));
    };
    (time(contenders), ...);
    result.seconds += last / parts / 1e9;
  }
  for (std::size_t i = 0; i < count; ++i) result.nanoseconds[i] = bench::median(per_part[i]);
}

}  // namespace micro
