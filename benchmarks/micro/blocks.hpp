// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "common/clock.hpp"
#include "common/statistics.hpp"
#include "micro/group.hpp"

namespace micro {

/// Runs `operations` of what is measured in short blocks, each after one of the reference, so that
/// both meet the same moods of the machine. `reference(n)` and `measured(n)` do n operations; the
/// `parts` of an operation are what a time is given for (2 for the one-way time of a round trip).
template <class Reference, class Measured>
void alternate(std::size_t operations, double parts, found& result, Reference&& reference,
               Measured&& measured) {
  constexpr std::size_t block = 1000;
  std::vector<double> reference_ns;
  std::vector<double> measured_ns;
  const auto time = [](std::size_t count, auto&& run) {
    const auto start = bench::clock::now();
    run(count);
    return bench::nanoseconds(bench::clock::now() - start);
  };
  for (std::size_t left = operations; left > 0;) {
    const std::size_t count = std::min(left, block);
    left -= count;
    const double divisor = static_cast<double>(count) * parts;
    reference_ns.push_back(time(count, reference) / divisor);
    const double spent = time(count, measured);
    measured_ns.push_back(spent / divisor);
    result.seconds += spent / parts / 1e9;
  }
  result.reference_ns = bench::median(reference_ns);
  result.measured_ns = bench::median(measured_ns);
}

}  // namespace micro
