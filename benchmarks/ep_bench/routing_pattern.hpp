// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ep_bench/collectivex.hpp"

namespace ep_bench {

/// How tokens choose their experts (`--routing`), checked.
struct routing_pattern {
  enum class kind {
    popular,      ///< each expert by its popularity
    grouped,      ///< that, among the experts of a few of the groups in which they are numbered
    incast,       ///< experts of the first rank only, as they are dealt out
    recorded,     ///< as in a file
    collectivex,  ///< as CollectiveX's, with its weights
  };
  kind of = kind::popular;
  double zipf = 0;            ///< exponent of the popularity; 0: all alike
  bool in_order = false;      ///< the popular experts have the low numbers; else random ones
  std::size_t groups = 1;     ///< in which experts are numbered
  std::size_t of_groups = 1;  ///< that a token may choose from
  std::uint64_t seed = collectivex_seed;  ///< of `collectivex`
  std::string file;
  std::vector<std::int32_t> ids;  ///< of `recorded`, a multiple of top_k
};

/// The forms of `--routing`, for its help.
inline constexpr const char* routing_forms =
    "uniform|zipf:S|zipf-in-order:S|groups:G:L|incast|collectivex[:SEED]|FILE.npy";

/// Returns what is wrong with the text of `--routing`, or nothing.
[[nodiscard]] std::string routing_complaint(const std::string& given);

/// Returns the pattern of a text about which `routing_complaint` says nothing, for tokens of
/// `top_k` of `experts` experts. Throws: what `programs::refuse` does, if those do not fit, or for
/// a file that cannot be used.
[[nodiscard]] routing_pattern read_routing(const std::string& given, std::size_t experts,
                                           std::size_t top_k);

}  // namespace ep_bench
