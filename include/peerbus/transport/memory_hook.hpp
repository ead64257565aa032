// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <functional>
#include <span>

namespace peerbus {

/// Called with this rank's own part of each new window, the communicator's included, before anybody
/// has touched it: the place to bind it to a NUMA node, lock it or register it. The span is whole
/// pages: the data from its first byte on, then the signals. It may not write there. Called by
/// the thread that makes the window. An `error` that it throws refuses the window on all ranks;
/// nothing else may leave it.
using memory_hook = std::function<void(std::span<std::byte>)>;

}  // namespace peerbus
