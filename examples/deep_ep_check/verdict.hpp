// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include <peerbus/compat/deep_ep/call.hpp>
#include <peerbus/compat/deep_ep/finding.hpp>
#include <peerbus/compat/deep_ep/hccl_buffsize.hpp>
#include <peerbus/compat/deep_ep/profile.hpp>
#include <peerbus/compat/deep_ep/variables.hpp>
#include <peerbus/moe/memory_map.hpp>

#include "options.hpp"

namespace deep_ep_check {

struct operation_finding {
  std::string_view what;  ///< the operation
  peerbus::deep_ep::finding found;
};

/// The judgement of one platform about the configuration, if its environment variables are set. Of
/// the mode a2e: about all ranks, whose `batchSize` is as it has to be.
struct verdict {
  peerbus::deep_ep::profile platform;
  bool fits = true;
  std::vector<operation_finding> findings;            ///< of dispatch, then the new ones of combine
  std::vector<peerbus::deep_ep::variable> variables;  ///< to set for both operations
};

struct hccl_window {
  peerbus::deep_ep::hccl_rule rule;
  std::size_t bytes;
};

/// The memory that the configuration needs per rank.
struct memory {
  std::string_view deep_ep_function;   ///< DeepEP's function that returns the bytes it needs
  std::optional<std::size_t> deep_ep;  ///< its result, if it supports this number of ranks
  std::vector<hccl_window> hccl;       ///< of each published rule
  peerbus::moe::memory_map peerbus;    ///< peerbus's window
  std::size_t arrays = 0;              ///< peerbus's arrays beside the window, low latency only
};

/// Returns the judgement of `platform` about `chosen`.
verdict judge(const options& chosen, peerbus::deep_ep::profile platform);

/// Returns the memory that `chosen` needs, or nothing if peerbus itself refuses the configuration,
/// or for the mode a2e, whose operators have HCCL's buffer alone.
std::optional<memory> memory_of(const options& chosen);

}  // namespace deep_ep_check
