// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ep_predict {

/// When the ranks of an operation begin, and which of them are slow.
struct arrival_spread {
  /// The mean of the time by which a rank begins late, in microseconds. 0: all begin at once.
  double skew_us = 0;
  /// The distribution of that time: "exponential", or "normal" for the absolute value of a normally
  /// distributed one.
  std::string skew_shape = "exponential";
  /// The probability with which a rank is a straggler in an operation.
  double straggler_share = 0;
  /// A straggler's own work before an operation takes so many times as long: its start-up, and the
  /// tokens that it encodes.
  double straggler_factor = 1;
};

/// Returns the shapes that `arrival_spread::skew_shape` may name.
[[nodiscard]] std::vector<std::string> skew_shapes();

/// Returns why `spread` is impossible, or an empty text.
[[nodiscard]] std::string complaint_about(const arrival_spread& spread);

/// How a rank comes to one operation.
struct arrival {
  double late_us = 0;
  bool straggles = false;
};

/// Returns how `rank` comes to `operation`, a number that grows with each operation. Depends on the
/// arguments alone.
[[nodiscard]] arrival draw(const arrival_spread& spread, std::uint64_t seed, std::size_t operation,
                           std::size_t rank);

}  // namespace ep_predict
