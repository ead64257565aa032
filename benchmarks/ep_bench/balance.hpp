// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "ep_bench/options.hpp"

namespace ep_bench {

/// Returns the options with the places of experts that `balance` asks for: planned from the rows
/// that this routing sends to each expert.
[[nodiscard]] options balanced(options chosen, std::size_t ranks);

}  // namespace ep_bench
