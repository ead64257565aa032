// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/collective/detail/call_rounds.hpp>
#include <peerbus/collective/detail/reducer.hpp>
#include <peerbus/collective/request.hpp>
#include <peerbus/core/compiled.hpp>

/// The algorithms of `all_reduce` in which each rank reduces one part of the elements for all
/// ranks.
namespace peerbus::collective::detail {

/// Does an `all_reduce` in pairs of rounds: each rank reduces its part of a slice in the first
/// round, and publishes the result in the second.
void all_reduce_in_two_shots(call_rounds& all, const request& given, const reducer& reduce);
/// Does an `all_reduce` of operands in a window: each rank reduces its part and stores the result
/// to all operands. No other rank accesses this part of any operand.
void all_reduce_in_window(call_rounds& all, const request& given, const reducer& reduce);

}  // namespace peerbus::collective::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/collective/detail/two_shots.ipp>  // IWYU pragma: keep
#endif
