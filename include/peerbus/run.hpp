// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/communicator/run.hpp>  // IWYU pragma: export
