// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Checks what the headers need of the compiler and of the including file. Names in one line what
/// is missing.

#include <version>

#if defined(_LIBCPP_VERSION) && _LIBCPP_VERSION < 200000
#error "peerbus needs libc++ 20 or newer, or libstdc++ 12 or newer (-stdlib=libstdc++)"
#endif

#ifndef __cpp_exceptions
#error "peerbus reports failures by exceptions; expected to be compiled without -fno-exceptions"
#endif

#if __SIZEOF_POINTER__ < 8
#error "peerbus needs a 64-bit machine: its counts and offsets have 64 bits"
#endif

#if defined(signals) || defined(slots)
#error \
    "'signals' or 'slots' is a macro, which Qt defines, but a name in peerbus: compile with QT_NO_KEYWORDS and write Q_SIGNALS, Q_SLOTS and Q_EMIT; or include peerbus before Qt in a file that uses neither name of peerbus"
#endif

#ifdef version
#error "'version' is a macro but a name in peerbus: include peerbus before it is defined"
#endif
