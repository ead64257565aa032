// SPDX-License-Identifier: MIT
#pragma once

// Names of a program's own, which parameters in peerbus's headers have as well.
inline int ranks = 4;
inline int experts = 8;
