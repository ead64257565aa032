// SPDX-License-Identifier: MIT
#pragma once

#include "coll_bench/options.hpp"
#include "coll_bench/outcome.hpp"
#include "support/json.hpp"
#include "support/machine.hpp"

namespace coll_bench {

void print(const options& chosen, const bench::machine& where, const outcome& result);
[[nodiscard]] bench::json result_json(const options& chosen, const bench::machine& where,
                                      const outcome& result);

}  // namespace coll_bench
