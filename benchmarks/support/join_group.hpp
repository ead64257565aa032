// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <string_view>

#include <peerbus/bootstrap/bootstrap.hpp>

namespace bench {

/// Meets the other ranks that a launcher has started. `how`: "host", by a socket of this host;
/// "tcp"; or "auto", by TCP only where the launcher says that there are other hosts.
/// Throws: `peerbus::error`, unsupported also if TCP is needed and OpenSSL was not there when this
/// program was built.
[[nodiscard]] std::unique_ptr<peerbus::bootstrap> join_group(std::string_view how);

}  // namespace bench
