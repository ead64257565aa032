// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/collective/detail/call_rounds.hpp>
#include <peerbus/collective/detail/reducer.hpp>
#include <peerbus/collective/request.hpp>
#include <peerbus/core/compiled.hpp>

namespace peerbus::collective::detail {

/// Carries out an operation whose rows are equal in size, in rounds in which each rank that gives
/// publishes a slice, or one for each peer, and each rank that takes copies or reduces those of
/// all.
void full_mesh(call_rounds& all, const request& given, const reducer& reduce);

}  // namespace peerbus::collective::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/collective/detail/full_mesh.ipp>  // IWYU pragma: keep
#endif
