// SPDX-License-Identifier: MIT
#pragma once

// Moved; this name goes with the next minor version.
#include <peerbus/communicator/near_groups.hpp>  // IWYU pragma: export
