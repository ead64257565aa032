// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdio>

#include "support/clock.hpp"

namespace ep_bench {

/// Says on stderr how far a long run has come; silent unless that is a terminal.
class progress {
 public:
  progress(bool wanted, std::size_t steps) noexcept
      : shown_{wanted && ::isatty(STDERR_FILENO) == 1}, steps_{steps} {}
  progress(const progress&) = delete;
  progress& operator=(const progress&) = delete;
  ~progress() {
    if (drawn_) std::fputs("\r\033[K", stderr);
  }

  void at(std::size_t step) noexcept {
    if (!shown_ || bench::clock::now() < next_) return;
    next_ = bench::clock::now() + std::chrono::milliseconds{250};
    drawn_ = true;
    std::fprintf(stderr, "\r\033[Kiteration %zu of %zu (%zu %%)", step, steps_,
                 step * 100 / steps_);
  }

 private:
  bool shown_;
  bool drawn_ = false;
  std::size_t steps_;
  // A run that ends within two seconds needs none.
  bench::clock::time_point next_ = bench::clock::now() + std::chrono::seconds{2};
};

}  // namespace ep_bench
