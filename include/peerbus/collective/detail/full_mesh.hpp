// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/collective/detail/call_rounds.hpp>
#include <peerbus/collective/detail/reducer.hpp>
#include <peerbus/collective/request.hpp>
#include <peerbus/core/compiled.hpp>

namespace peerbus::collective::detail {

/// Carries out an operation whose rows are equal in size. In each round every rank that contributes
/// publishes a slice, or a slice for each peer, and every rank that receives copies or reduces the
/// slices of all.
void full_mesh(call_rounds& all, const request& given, const reducer& reduce);

}  // namespace peerbus::collective::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/collective/detail/full_mesh.ipp>  // IWYU pragma: keep
#endif
