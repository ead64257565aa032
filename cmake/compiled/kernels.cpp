// SPDX-License-Identifier: MIT
#include <peerbus/kernel/impl/kernel_set.hpp>
