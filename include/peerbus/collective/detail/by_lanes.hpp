// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include <peerbus/bootstrap/detail/reported.hpp>
#include <peerbus/bootstrap/event_listener.hpp>
#include <peerbus/bootstrap/event_listeners.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/collective/call_options.hpp>
#include <peerbus/collective/detail/call_rounds.hpp>
#include <peerbus/collective/detail/reducer.hpp>
#include <peerbus/collective/detail/team_access.hpp>
#include <peerbus/collective/request.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>

namespace peerbus::collective::detail {

/// Returns the deadline by which all lanes of a call must have come.
deadline lane_deadline(team& team, const call_options& options);

/// Poisons the communicator, because the lanes of a call of `operation` do not fit together.
/// Throws: `error` `code` with `text`.
[[noreturn]] void fail_lanes(team& team, std::string_view operation, errc code,
                             const std::string& text);

///@{
/// Carries out `operation` by all lanes. Lane 0 calls `body()`. `name` must be a literal, the same
/// on all lanes.
/// Throws: as `body`; `error` invalid_argument or timed_out if the lanes do not fit together, and
/// the communicator is poisoned.
template <class Body>
void by_lanes(team& team, std::string_view operation, const char* name, const call_options& options,
              Body&& body) {
  const auto carry_out = [&] {
    team_access::pool(team).carry_out(
        options.as, body, [&] { return lane_deadline(team, options); },
        [&](errc code, const std::string& text) { fail_lanes(team, operation, code, text); }, name);
  };
  if (options.as.index == 0) return carry_out();
  // Lane 0 tells of the operation itself.
  const event_listeners& listeners = team_access::communicator(team).members()->listeners();
  if (!listeners.any()) return carry_out();
  peerbus::detail::reported(listeners,
                            {.kind = event_kind::step, .name = name, .lane = options.as.index},
                            [&](const operation_event&) { carry_out(); });
}
template <class Body>
void by_lanes(team& team, const char* operation, const call_options& options, Body&& body) {
  by_lanes(team, operation, operation, options, body);
}
///@}

/// Reduces `bytes` bytes of all `sources`, in their order, to `out`, by all lanes of the call.
void reduce_by_lanes(const call_rounds& in, const request& given, const reducer& reduce,
                     std::byte* out, std::span<const std::byte* const> sources,
                     std::size_t bytes) noexcept;

}  // namespace peerbus::collective::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/collective/detail/by_lanes.ipp>  // IWYU pragma: keep
#endif
