// SPDX-License-Identifier: MIT
#pragma once

// Moved; this name goes with the next minor version.
#include <peerbus/communicator/rank_group.hpp>  // IWYU pragma: export
