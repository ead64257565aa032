// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "common/statistics.hpp"
#include "ep_bench/outcome.hpp"

namespace ep_bench {

inline constexpr std::string_view bytes_formula =
    "per rank: dispatch = tokens x top_k x (row + scale + 8), with row + scale = hidden + 4 for "
    "int8 and 2 x hidden for bf16, and 8 for the origin; combine = tokens x top_k x 2 x hidden";

inline constexpr std::string_view what_is_checked =
    "bitwise against a plain reference, before and after timing: every received row with its scale "
    "and origin, its expert and its order; every combined element, by fma in slot order; the bytes "
    "that the plain copy writes and reads";

/// The statistics that a report shows; there are some only if something was timed.
struct figures {
  bench::statistics dispatch;
  bench::statistics combine;
  bench::statistics pair;
  bench::statistics plain_dispatch;
  bench::statistics plain_combine;
  std::optional<double> signal_one_way_ns;  ///< none with one rank

  [[nodiscard]] static std::optional<figures> of_run(const outcome& result) {
    if (of(result.samples, series::dispatch).empty()) return std::nullopt;
    const auto in = [&](series which) { return bench::summarise(of(result.samples, which)); };
    figures found{in(series::dispatch),       in(series::combine),       in(series::pair),
                  in(series::plain_dispatch), in(series::plain_combine), std::nullopt};
    if (!result.signal_one_way_ns.empty())
      found.signal_one_way_ns = bench::median(result.signal_one_way_ns);
    return found;
  }
};

/// 10^9 bytes a second.
inline double gigabytes_per_second(std::size_t bytes, double microseconds) noexcept {
  return static_cast<double>(bytes) / microseconds / 1e3;
}

}  // namespace ep_bench
