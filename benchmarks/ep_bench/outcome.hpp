// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ep_bench/samples.hpp"

namespace ep_bench {

/// What a run found out. Times are there on rank 0 only, and not if the check before them failed.
struct outcome {
  std::string wrong;  ///< what the check found; empty if all was right
  sample_table samples;
  std::vector<double> signal_one_way_ns;
  bool crowded = false;            ///< more ranks than cores
  std::size_t cores = 0;           ///< that the ranks may use
  std::size_t dispatch_bytes = 0;  ///< of each rank
  std::size_t combine_bytes = 0;   ///< of each rank
};

}  // namespace ep_bench
