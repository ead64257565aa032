// SPDX-License-Identifier: MIT
#include "../exchange_of.hpp"

PEERBUS_C_MORE_EXCHANGES(, fp8_e4m3_per_128_f32);

const peerbus::c_library::make_exchange_function peerbus::c_library::make_fp8_f32 =
    make_exchange<codec::fp8_e4m3_per_128_f32>;
