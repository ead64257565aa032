// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "ep_bench/options.hpp"
#include "ep_bench/outcome.hpp"
#include "support/machine.hpp"

namespace ep_bench {

struct ablation_outcome;

/// What the ranks came to be, apart from what was asked for.
struct group {
  std::size_t ranks;
  std::string placement;  ///< "pinned", "not pinned" or "placed by the launcher"
};

/// A table for people, on stdout.
void print(const options& chosen, const group& who, const bench::machine& where,
           const outcome& result);

/// The same for an ablation. `cores`: usable ones.
void print_ablation(const options& chosen, const group& who, const bench::machine& where,
                    std::size_t cores, const ablation_outcome& result);

/// Parts of both tables.
void print_machine(const bench::machine& where, std::size_t cores);
void print_check(const std::string& wrong, std::string_view checked);

}  // namespace ep_bench
