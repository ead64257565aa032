// SPDX-License-Identifier: MIT
#include "../exchange_of.hpp"

PEERBUS_C_MORE_EXCHANGES(, bf16);

const peerbus::c_library::make_exchange_function peerbus::c_library::make_bf16 =
    make_exchange<codec::bf16>;
