// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>

/// E4M3 and its scales from their definitions, in double. Nothing here uses the library.
namespace oracle {

/// The value of each code from 0 to 0x7e.
const std::array<double, 127>& e4m3_values();

/// The nearest code, the even one of two that are as near; 448 beyond that; 0x7f of either sign for
/// NaN.
std::uint8_t e4m3_code(float value);

struct e4m3_scale {
  float to_codes;
  float to_values;
};

/// Of a group whose largest magnitude is `largest`, a finite number. A quotient or product of two
/// floats that is rounded to double and then to float is rounded right.
e4m3_scale e4m3_scale_of(float largest, bool power_of_two);

}  // namespace oracle
