// SPDX-License-Identifier: MIT
#pragma once

// Moved; this name goes with the next minor version.
#include <peerbus/bootstrap/rendezvous_options.hpp>  // IWYU pragma: export
