// SPDX-License-Identifier: MIT
#pragma once

// Moved; the next minor version removes this name.
#include <peerbus/communicator/rank_group.hpp>  // IWYU pragma: export
