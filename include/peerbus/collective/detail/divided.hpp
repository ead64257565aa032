// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include <peerbus/collective/algorithm.hpp>
#include <peerbus/collective/detail/call_rounds.hpp>
#include <peerbus/collective/detail/page_exchange.hpp>
#include <peerbus/collective/detail/reducer.hpp>
#include <peerbus/collective/request.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>

/// Algorithms of `all_reduce` and `reduce_scatter` in which each rank reduces a part of the
/// operand, and which do not keep the order of ranks.
namespace peerbus::collective::detail {

/// Returns the range of the first `bytes` bytes of the operand that `rank` reduces if each of
/// `ranks` ranks reduces an equal share.
byte_range part_of_rank(const request& given, std::size_t bytes, rank_id rank,
                        std::size_t ranks) noexcept;

/// Does an `all_reduce` by `ring`. Part j goes from rank j + 1 to j + 2 and so on, modulo n. Each
/// rank adds its own part, so that rank j gets the whole sum. Then the sums travel in the same
/// direction.
void all_reduce_by_ring(call_rounds& all, const request& given, const reducer& reduce);

/// Does an `all_reduce` by `two_levels`. Each rank reduces a part of its group's operands, which
/// it loads. Ranks with equal places in their groups exchange these parts and reduce them in the
/// order of groups. Each rank loads the results of its group.
void all_reduce_by_two_levels(call_rounds& all, const request& given, const reducer& reduce);

/// Does a `reduce_scatter` by `ring`, as the first half of `all_reduce_by_ring`.
void reduce_scatter_by_ring(call_rounds& all, const request& given, const reducer& reduce);

/// Does a `reduce_scatter` by `two_levels`. From its group's operands, each rank reduces the parts
/// for the ranks with its place in all groups. It sends these parts to them, and reduces the parts
/// that it gets in the order of groups.
void reduce_scatter_by_two_levels(call_rounds& all, const request& given, const reducer& reduce);

}  // namespace peerbus::collective::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/collective/detail/divided.ipp>  // IWYU pragma: keep
#endif
