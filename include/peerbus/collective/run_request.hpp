// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

#include <peerbus/collective/call_options.hpp>
#include <peerbus/collective/pending.hpp>
#include <peerbus/collective/request.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/core/compiled.hpp>

namespace peerbus::collective {

/// Returns whether operations can reduce elements of this type, which is true of f32, f64, bf16,
/// i32, i64 and u8.
[[nodiscard]] bool can_reduce(const element_type& element) noexcept;

/// Carries out the operation that `asked` describes. Contract as the function of the operation's
/// name.
/// Throws also, on all ranks: `error` invalid_argument if this rank's elements cannot be reduced,
/// refused if those of another rank cannot.
void run(team& team, const request& asked, const call_options& options = {});

/// Does the first half of the operation that `asked` describes. `pending::finish` does the rest.
/// `pending` says what holds between the halves. `asked` need not live after this call.
/// Throws also: `error` as `run` for elements that cannot be reduced, on all ranks in this half.
[[nodiscard]] pending start(team& team, const request& asked, const call_options& options = {});

/// Takes part in an operation without carrying it out, because the caller has found its arguments
/// bad. The operation fails on all ranks, so that none waits for this rank. `operation` is the name
/// of the function. Never returns.
/// Throws: `error` invalid_argument with `objection`, while the other ranks throw refused with it;
/// or the error that ends the wait for the other ranks.
[[noreturn]] void refuse(team& team, std::string_view operation, const element_type& element,
                         const std::string& objection, const call_options& options = {});

}  // namespace peerbus::collective

#ifndef PEERBUS_COMPILED
#include <peerbus/collective/run_request.ipp>  // IWYU pragma: keep
#endif
