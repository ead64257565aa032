// SPDX-License-Identifier: MIT
#pragma once

#include <sys/resource.h>

#include <cstddef>
#include <ctime>

#include "ep_bench/outcome.hpp"

namespace ep_bench {

/// Adds up what operations take of the core that their rank shares with others: the CPU time of
/// the calling thread, and how often the thread gave its core up.
class core_meter {
 public:
  /// Does `operation`, and adds what it took.
  template <class Operation>
  void add(Operation&& operation) {
    const core_use before = now();
    operation();
    const core_use after = now();
    sum_.cpu_us += after.cpu_us - before.cpu_us;
    sum_.sleeps += after.sleeps - before.sleeps;
    sum_.yields += after.yields - before.yields;
    ++operations_;
  }
  /// Returns the mean.
  [[nodiscard]] core_use mean() const noexcept {
    const auto count = static_cast<double>(operations_);
    return {sum_.cpu_us / count, sum_.sleeps / count, sum_.yields / count};
  }

 private:
  static core_use now() noexcept {
    timespec cpu{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
    rusage used{};
    ::getrusage(RUSAGE_THREAD, &used);
    return {static_cast<double>(cpu.tv_sec) * 1e6 + static_cast<double>(cpu.tv_nsec) / 1e3,
            static_cast<double>(used.ru_nvcsw), static_cast<double>(used.ru_nivcsw)};
  }

  core_use sum_;
  std::size_t operations_ = 0;
};

}  // namespace ep_bench
