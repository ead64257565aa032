// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/communicator/window.hpp>  // IWYU pragma: export
