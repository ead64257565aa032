// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/communicator/any_window.hpp>

namespace peerbus::moe {

///@{
/// The former names of classes that other parts of the library use, too. They go with the next
/// minor version.
using exchange_window [[deprecated("use peerbus::any_window")]] = any_window;
template <transport Transport>
using exchange_window_over [[deprecated("use peerbus::any_window_over")]] =
    any_window_over<Transport>;
///@}

}  // namespace peerbus::moe
