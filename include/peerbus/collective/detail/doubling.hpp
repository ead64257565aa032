// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>

#include <peerbus/collective/algorithm.hpp>
#include <peerbus/collective/detail/call_rounds.hpp>
#include <peerbus/collective/detail/reducer.hpp>
#include <peerbus/collective/request.hpp>
#include <peerbus/core/compiled.hpp>

/// The algorithm `doubling`. After step k, which counts from 0, rank p has the operands of the
/// ranks from p to p + 2^(k+1) - 1, modulo n. In the step it sends its operands to p - 2^k and gets
/// equally many from p + 2^k, or only the missing ones. Row i of the page is the operand of rank p
/// + i, so that each message is the start of the page.
namespace peerbus::collective::detail {

/// Begins a round that gathers `bytes` bytes of each rank, which each rank has written to the start
/// of its page: sends the bytes of this rank in the first step.
void begin_doubling(call_rounds& all, std::size_t bytes);
/// Ends the round. Row i of `step_page()` is then the row of rank `self + i`, modulo n.
void end_doubling(call_rounds& all, std::size_t bytes);

/// Does an `all_reduce` by doubling.
void all_reduce_by_doubling(call_rounds& all, const request& given, const reducer& reduce);
/// Does an `all_gather` by doubling.
void all_gather_by_doubling(call_rounds& all, const request& given, const reducer& reduce);

}  // namespace peerbus::collective::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/collective/detail/doubling.ipp>  // IWYU pragma: keep
#endif
