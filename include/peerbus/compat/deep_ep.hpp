// SPDX-License-Identifier: MIT
#pragma once

/// DeepEP's names over peerbus: docs/porting-from-deepep.md.
#include <peerbus/compat/deep_ep/buffer.hpp>  // IWYU pragma: export
