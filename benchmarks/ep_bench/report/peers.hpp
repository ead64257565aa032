// SPDX-License-Identifier: MIT
#pragma once

#include "ep_bench/options.hpp"
#include "support/json.hpp"

namespace ep_bench {

/// Returns the contents of the JSON files `chosen.peers`, results of other libraries. The page
/// picks those that are comparable. Throws: `peerbus::error` invalid_argument if a file is no JSON
/// or nowhere has a `config` with medians at `dispatch_us.p50` and `combine_us.p50`, as the
/// programs under benchmarks/ write them.
[[nodiscard]] bench::json read_peers(const options& chosen);

}  // namespace ep_bench
