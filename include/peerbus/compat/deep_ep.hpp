// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// DeepEP's names over peerbus. The guide is docs/porting-from-deepep.md.
#include <peerbus/compat/deep_ep/buffer.hpp>  // IWYU pragma: export
