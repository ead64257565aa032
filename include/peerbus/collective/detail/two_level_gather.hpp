// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/collective/detail/call_rounds.hpp>
#include <peerbus/collective/detail/reducer.hpp>
#include <peerbus/collective/request.hpp>
#include <peerbus/core/compiled.hpp>

namespace peerbus::collective::detail {

/// Does an `all_gather` by `two_levels`. Each rank sends its operand to the ranks with the same
/// place in other groups. Then each rank publishes the operands that it has got, and its own, to
/// its group.
void all_gather_by_two_levels(call_rounds& all, const request& given, const reducer& reduce);

/// Does a `broadcast` by `two_levels`. The root sends the data to the ranks with its place in other
/// groups. Then these ranks publish the data to their groups.
void broadcast_by_two_levels(call_rounds& all, const request& given, const reducer& reduce);

}  // namespace peerbus::collective::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/collective/detail/two_level_gather.ipp>  // IWYU pragma: keep
#endif
