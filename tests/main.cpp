// SPDX-License-Identifier: MIT
// Both, as the precompiled header has included doctest without them.
#define DOCTEST_CONFIG_IMPLEMENT
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
