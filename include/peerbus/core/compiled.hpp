// SPDX-License-Identifier: MIT
#pragma once

/// PEERBUS_COMPILED says where the bodies of functions that are no templates come from: from the
/// library of the target peerbus::compiled, which alone defines it, or, without it, from the
/// headers. It changes no type and no layout, so that translation units with and without it may
/// meet in one program.
#ifdef PEERBUS_COMPILED
#define PEERBUS_INLINE
#else
#define PEERBUS_INLINE inline
#endif

/// PEERBUS_INLINE for the control path: optimised for size, as such functions run seldom, while
/// every translation unit that uses them pays for their optimisation.
#define PEERBUS_CONTROL_PATH [[gnu::cold]] PEERBUS_INLINE
