// SPDX-License-Identifier: MIT
#pragma once

// Moved; the next minor version removes this name.
#include <peerbus/moe/balance/expert_load.hpp>  // IWYU pragma: export
