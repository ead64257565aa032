// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "coll_bench/options.hpp"
#include "coll_bench/outcome.hpp"
#include "support/machine.hpp"

namespace coll_bench {

/// Returns the signs that other programs disturbed a run, in words, if there are any.
[[nodiscard]] std::string noise_of(const options& chosen, const outcome& result);
/// Prints the results, and writes them as JSON and as a page where the options say so.
/// Throws: `peerbus::error` system if a file cannot be written.
void show(const options& chosen, const bench::machine& where, const outcome& result);

}  // namespace coll_bench
