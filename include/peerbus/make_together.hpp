// SPDX-License-Identifier: MIT
#pragma once

// Moved; this name goes with the next minor version.
#include <peerbus/communicator/make_together.hpp>  // IWYU pragma: export
