// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ep_bench/options.hpp"

namespace ep_bench {

/// What another library needed for the payload of one configuration, in microseconds.
struct peer_point {
  std::string name;
  std::size_t ranks;
  std::size_t tokens;
  double dispatch;
  double combine;
};

/// The results in the JSON files `chosen.peers` that are comparable: those, at any depth, that have
/// a `config` with the hidden size, top_k, experts, codec and kind of rows of `chosen` and medians
/// at `dispatch_us.p50` and `combine_us.p50`, as the programs under benchmarks/ write them, and are
/// not of this library.
/// Throws: `peerbus::error` invalid_argument if a file is no JSON or has no results at all.
[[nodiscard]] std::vector<peer_point> read_peers(const options& chosen);

}  // namespace ep_bench
