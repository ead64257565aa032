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
  peerbus::deep_ep::operation what;
  peerbus::deep_ep::finding found;
};

/// What one platform says of the configuration, its variables set.
struct verdict {
  peerbus::deep_ep::profile platform;
  bool fits = true;
  std::vector<operation_finding> findings;            ///< of dispatch, and of combine what is new
  std::vector<peerbus::deep_ep::variable> variables;  ///< to set, likewise
};

struct hccl_window {
  peerbus::deep_ep::hccl_rule rule;
  std::size_t bytes;
};

/// Memory per rank.
struct memory {
  std::string_view deep_ep_function;   ///< DeepEP's function that says what it needs
  std::optional<std::size_t> deep_ep;  ///< what it says, if anything for so many ranks
  std::vector<hccl_window> hccl;       ///< of each published rule
  peerbus::moe::memory_map peerbus;    ///< its window
  std::size_t arrays = 0;              ///< what it keeps beside that, low latency only
};

verdict judge(const options& chosen, peerbus::deep_ep::profile platform);

/// Empty if peerbus itself refuses the configuration.
std::optional<memory> memory_of(const options& chosen);

}  // namespace deep_ep_check
