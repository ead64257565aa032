// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/communicator/communicator.hpp>  // IWYU pragma: export
