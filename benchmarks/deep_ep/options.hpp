// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "ep_bench/options.hpp"

namespace deep_ep_bench {

/// What the command line asks for, checked. The payload's part is ep_bench's, so that both choose
/// the same experts.
struct options {
  ep_bench::options payload;
  std::string mode = "low_latency";  ///< or "normal"
  bool zero_copy = false;
  std::string json;  ///< empty: none
};

}  // namespace deep_ep_bench
