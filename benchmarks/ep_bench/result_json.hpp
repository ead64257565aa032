// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "ep_bench/figures.hpp"
#include "ep_bench/options.hpp"
#include "ep_bench/report.hpp"
#include "support/json.hpp"

namespace ep_bench {

using bench::json;
using bench::rounded;

/// The results of a run: its configuration, the machine, times, bytes, floor and check. Times are
/// null, not absent, where nothing could be measured, so that readers need no special case.
[[nodiscard]] json result_json(const options& chosen, const group& who, const bench::machine& where,
                               const outcome& result);

/// The same of an ablation, with the times of each step. `cores`: usable ones.
[[nodiscard]] json ablation_json(const options& chosen, const group& who,
                                 const bench::machine& where, std::size_t cores,
                                 const ablation_outcome& result);

inline json config_json(const options& chosen, const group& who, std::size_t iterations) {
  return {{"transport", chosen.transport},
          {"ranks", who.ranks},
          {"tokens", chosen.tokens},
          {"tokens_of_ranks", chosen.tokens_of_ranks},
          {"hidden", chosen.hidden},
          {"top_k", chosen.top_k},
          {"experts", chosen.experts},
          {"codec", chosen.codec},
          {"layout", chosen.layout},
          {"outputs", chosen.outputs},
          {"lanes", chosen.lanes},
          {"routing", chosen.routing},
          {"balance", chosen.balance},
          {"spare", chosen.spare},
          {"replan_after", chosen.replan_after},
          {"moves", chosen.moves},
          {"row_us", chosen.row_us},
          {"iters", iterations},
          {"warmup", chosen.warmup},
          {"seed", chosen.seed},
          {"placement", who.placement},
          {"stores", chosen.stores},
          {"between", words_for_between(chosen)}};
}

inline json machine_json(const bench::machine& where, std::size_t usable_cores) {
  json result = bench::machine_json(where);
  result["usable_cores"] = usable_cores;
  return result;
}

}  // namespace ep_bench
