// SPDX-License-Identifier: MIT
#include <peerbus/peerbus.hpp>

float through_other(float value);

float through_other(float value) { return static_cast<float>(peerbus::bf16{value}); }
