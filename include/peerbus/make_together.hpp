// SPDX-License-Identifier: MIT
#pragma once

// Moved; the next minor version removes this name.
#include <peerbus/communicator/make_together.hpp>  // IWYU pragma: export
