// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "put_bench/contender.hpp"
#include "support/json.hpp"
#include "support/put_stream.hpp"

namespace put_bench {

/// How often contenders take turns, and who shows it.
struct turns {
  std::size_t rounds;  ///< round trips of a block
  std::size_t blocks;  ///< of each contender, and one more to warm up
  bool prints;         ///< whether this rank prints
  /// Collective: ends the turn of a contender.
  std::function<void()> end_turn;
};

/// Collective: sends small payloads of each of `sizes`, by all contenders in turns. Prints a table.
/// The p50 is the median of the blocks' medians, the other figures are those of all samples.
/// Returns: the same figures.
[[nodiscard]] bench::json measure_latency(const std::string& title, const contenders& all,
                                          std::span<const std::size_t> sizes, const turns& how);

/// Messages of one shape, and what the table calls them.
struct named_stream {
  std::string name;
  bench::stream_shape shape;
};

/// Collective: sends messages of each of `streams`, likewise.
[[nodiscard]] bench::json measure_bandwidth(const contenders& all,
                                            std::span<const named_stream> streams,
                                            const turns& how);

}  // namespace put_bench
