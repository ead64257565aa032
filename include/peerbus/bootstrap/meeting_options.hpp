// SPDX-License-Identifier: MIT
#pragma once

// Moved; the next minor version removes this name.
#include <peerbus/bootstrap/rendezvous_options.hpp>  // IWYU pragma: export
