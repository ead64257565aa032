// SPDX-License-Identifier: MIT
#pragma once

// Moved; this name goes with the next minor version.
#include <peerbus/communicator/groups_by_leader.hpp>  // IWYU pragma: export
