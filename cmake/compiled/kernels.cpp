// SPDX-License-Identifier: MIT
#include <peerbus/kernel/kernel_set.ipp>
