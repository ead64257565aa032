// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus {

/// A function that is called with this rank's own part of each new window, the communicator's
/// included, before any rank has touched it. It can bind the memory to a NUMA node, lock it or
/// register it; it must not write there. The span is whole pages, which begin with the data.
/// Transports of loads and stores append the signals. The thread that makes the window calls the
/// function. If it throws a `std::exception`, all ranks throw an `error` with its text, and no rank
/// has the window.
using memory_hook = std::function<void(std::span<std::byte>)>;

}  // namespace peerbus
