// SPDX-License-Identifier: MIT
#pragma once

// Moved; this name goes with the next minor version.
#include <peerbus/moe/balance/expert_load.hpp>  // IWYU pragma: export
