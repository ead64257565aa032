// SPDX-License-Identifier: MIT
// With other.cpp: a program of two translation units that both include everything.
#include <peerbus/peerbus.hpp>

float through_other(float value);

int main() {
  static_assert(peerbus::version.major_part == PEERBUS_VERSION_MAJOR);
  const float here = static_cast<float>(peerbus::bf16{0.3F});
  return through_other(0.3F) == here ? 0 : 1;
}
