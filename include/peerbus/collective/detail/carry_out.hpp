// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/collective/call_options.hpp>
#include <peerbus/collective/detail/element_work.hpp>
#include <peerbus/collective/detail/operation.hpp>
#include <peerbus/collective/detail/reducer.hpp>
#include <peerbus/collective/pending.hpp>
#include <peerbus/collective/request.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/core/compiled.hpp>

/// Functions that begin, carry out and start requests, for the operations on ranges.
namespace peerbus::collective::detail {

/// Begins the operation of a request: checks the request, and chooses the algorithm. Does not
/// communicate. `reduce` is its reduction, if it has one.
/// Throws: as the constructor of `call_rounds`.
operation begin(team& team, const request& asked, const reducer& reduce,
                const call_options& options);

/// Carries out an operation, by all lanes. If it has a residual, `reduce` is the sum without the
/// residual.
/// Throws: as `by_lanes` and `call_rounds::await`.
void carry_out(team& team, const request& asked, const reducer& reduce,
               const call_options& options);
/// Carries out an operation that reduces nothing.
inline void carry_out(team& team, const request& asked, const call_options& options) {
  carry_out(team, asked, reducer{}, options);
}

/// Does the first half of an operation without a residual.
/// Throws: as `begin` and `operation::start`.
pending start(team& team, const request& asked, const kept_work& work, const call_options& options);
/// Does the first half of an operation that reduces nothing.
inline pending start(team& team, const request& asked, const call_options& options) {
  return start(team, asked, kept_work{}, options);
}
/// Does the first half of an operation with a residual. `sum` must refer to an object that outlives
/// the operation.
pending start_add(team& team, const request& asked, const reducer& sum,
                  const call_options& options);

}  // namespace peerbus::collective::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/collective/detail/carry_out.ipp>  // IWYU pragma: keep
#endif
