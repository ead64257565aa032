// SPDX-License-Identifier: MIT
#include "../exchange_of.hpp"

PEERBUS_C_MORE_EXCHANGES(, int8_per_token);

const peerbus::c_library::make_exchange_function peerbus::c_library::make_int8_per_token =
    make_exchange<codec::int8_per_token>;
