// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/transport/fabric.hpp>

#include "support/network_options.hpp"

namespace bench {

/// Returns what `fabric` is made with.
[[nodiscard]] inline peerbus::fabric_options fabric_options_of(const network_options& chosen) {
  peerbus::fabric_options with;
  if (!chosen.provider.empty()) with.provider = chosen.provider;
  with.domain = chosen.device;
  return with;
}

}  // namespace bench
