// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/rank.hpp>

#include "support/statistics.hpp"

namespace bench {

/// What --quiet-or-fail asks for, and what was seen before the ranks started.
struct noise_options {
  bool quiet_or_fail = false;
  double busy_cores = 0;  ///< that other programs used
};

/// Returns how many cores other programs keep busy, as the kernel counts over the next fifth of a
/// second. Called before a benchmark starts its ranks.
[[nodiscard]] double busy_cores();
/// Returns the same for ranks that a launcher has started, which all sleep meanwhile: the most of
/// their hosts. Collective.
[[nodiscard]] double busy_cores(peerbus::bootstrap& boot);

/// Returns the signs, in words, that a measurement was disturbed; nothing if there are none. They
/// are other programs on more than a quarter of a core just before, and a p90 of more than twice
/// the median, of `times` by name.
[[nodiscard]] std::string signs_of_noise(
    const noise_options& seen,
    const std::vector<std::pair<std::string_view, statistics>>& times = {});

/// Returns whether `program` fails because of `signs`, and prints so on rank 0.
[[nodiscard]] bool refuses_noise(const char* program, const noise_options& asked,
                                 const std::string& signs, peerbus::rank_id rank = {});

}  // namespace bench
