// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

/// PEERBUS_COMPILED selects where the bodies of non-template functions come from. If it is defined,
/// they come from the library of the target peerbus::compiled. If not, they come from the headers.
/// Only that target defines it. It changes no type and no layout, so that one program may contain
/// translation units with and without it.
///
/// A virtual function whose body stands outside its class is declared PEERBUS_INLINE in the class
/// as well. Otherwise it is the key function of the class (Itanium C++ ABI, 5.2.3), and g++
/// compiles all that the class reaches in every translation unit that includes the header.
#ifdef PEERBUS_COMPILED
#define PEERBUS_INLINE
#else
#define PEERBUS_INLINE inline
#endif

/// PEERBUS_ERROR_PATH is PEERBUS_INLINE for functions that run only once something has failed. They
/// are optimised for size. No function that succeeds may have it: g++ takes everything that leads
/// to such a call, or follows it, for seldom used, and optimises a caller's loops for size as well.
#define PEERBUS_ERROR_PATH [[gnu::cold]] PEERBUS_INLINE
