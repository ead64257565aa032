// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/communicator/any_window.hpp>

namespace peerbus::moe {

///@{
/// A former name of a window class that is no longer specific to exchanges. The next minor version
/// removes this name.
using exchange_window [[deprecated("use peerbus::any_window")]] = any_window;
template <transport Transport>
using exchange_window_over [[deprecated("use peerbus::any_window_over")]] =
    any_window_over<Transport>;
///@}

}  // namespace peerbus::moe
