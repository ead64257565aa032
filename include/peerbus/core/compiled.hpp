// SPDX-License-Identifier: MIT
#pragma once

/// PEERBUS_COMPILED selects where the bodies of non-template functions come from. If it is defined,
/// they come from the library of the target peerbus::compiled. If not, they come from the headers.
/// Only that target defines it. It changes no type and no layout, so that one program may contain
/// translation units with and without it.
#ifdef PEERBUS_COMPILED
#define PEERBUS_INLINE
#else
#define PEERBUS_INLINE inline
#endif

/// PEERBUS_CONTROL_PATH is PEERBUS_INLINE for functions of the control path. They are optimised for
/// size, because they run seldom and every translation unit that uses them would pay for more
/// optimisation.
#define PEERBUS_CONTROL_PATH [[gnu::cold]] PEERBUS_INLINE
