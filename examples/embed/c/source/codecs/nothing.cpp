// SPDX-License-Identifier: MIT
#include "../exchange_of.hpp"

PEERBUS_C_EXCHANGES(, nothing);

const peerbus::c_library::make_exchange_function peerbus::c_library::make_nothing =
    make_exchange<codec::nothing>;
