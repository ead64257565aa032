// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>

#include "ep_bench/machine.hpp"
#include "ep_bench/options.hpp"
#include "ep_bench/outcome.hpp"

namespace ep_bench {

struct ablation_outcome;

/// What the ranks came to be, apart from what was asked for.
struct group {
  std::size_t ranks;
  std::string placement;  ///< "pinned", "not pinned" or "placed by the launcher"
};

/// A table for people, on stdout.
void print(const options& chosen, const group& who, const machine& where, const outcome& result);

/// The same for programs, into the file `chosen.json`.
/// Throws: `peerbus::error` system if it cannot be written.
void write_json(const options& chosen, const group& who, const machine& where,
                const outcome& result);

/// The same for an ablation; the file `chosen.svg` gets a chart. `cores`: usable ones.
/// Throws: as `write_json`.
void print_ablation(const options& chosen, const group& who, const machine& where,
                    std::size_t cores, const ablation_outcome& result);
void write_ablation_json(const options& chosen, const group& who, const machine& where,
                         std::size_t cores, const ablation_outcome& result);
void write_ablation_chart(const options& chosen, const group& who, const machine& where,
                          const ablation_outcome& result);

}  // namespace ep_bench
