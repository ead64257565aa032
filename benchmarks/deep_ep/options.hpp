// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>

#include "ep_bench/options.hpp"

namespace deep_ep_bench {

/// What the command line asks for, checked. The payload's part is ep_bench's, so that both choose
/// the same experts.
struct options {
  ep_bench::options payload;
  std::string mode = "low_latency";  ///< or "normal"
  bool zero_copy = false;
  bool alone = false;     ///< without peerbus's own calls, whose memory takes part of the caches
  bool relay = false;     ///< DeepEP's names without and with relay, over planes, instead
  std::size_t hosts = 2;  ///< pretended ones, of planes
  bool twice = false;     ///< combines again by the same handle
  std::size_t in_flight = 2;  ///< DeepEP's low-latency mode has two
  std::string json;           ///< empty: none
};

}  // namespace deep_ep_bench
