// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/core/lane.hpp>  // IWYU pragma: export

namespace peerbus::moe {

using peerbus::lane;
using peerbus::max_lanes;  // NOLINT(misc-unused-using-decls): callers use it.

}  // namespace peerbus::moe
