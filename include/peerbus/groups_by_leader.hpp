// SPDX-License-Identifier: MIT
#pragma once

// Moved; the next minor version removes this name.
#include <peerbus/communicator/near_groups.hpp>  // IWYU pragma: export
