// SPDX-License-Identifier: MIT
// Compiled with every header, in the debug mode of libstdc++ and with the compiler's extensions,
// which other tests do without. In that mode containers are no literal types; with extensions
// `__int128` is an integral type.
#include <peerbus/collective/reduction.hpp>
#include <peerbus/collective/team.hpp>

#ifdef __SIZEOF_INT128__
namespace {

using wide = unsigned __int128;
using peerbus::collective::product;
using peerbus::collective::sum;

constexpr wide high = wide{1} << 100U;
static_assert(sum{}(high, high + 1) == (wide{1} << 101U) + 1);
static_assert(sum{}(~wide{0}, wide{2}) == 1);
static_assert(sum{}(__int128{-5}, __int128{2}) == -3);
static_assert(product{}(high, wide{3}) == high + high + high);
static_assert(product{}(__int128{-5}, __int128{2}) == -10);

}  // namespace
#endif
