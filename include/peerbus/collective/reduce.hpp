// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/collective/call_options.hpp>
#include <peerbus/collective/detail/by_lanes.hpp>
#include <peerbus/collective/detail/operands.hpp>
#include <peerbus/collective/detail/operation.hpp>
#include <peerbus/collective/detail/reducer.hpp>
#include <peerbus/collective/pending.hpp>
#include <peerbus/collective/reduction.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/communicator/window.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::collective {

namespace detail {
/// Begins `reduce` for elements of any type.
operation reduce_bytes(team& on, const operands& given, const reducer& reduce, rank_id root,
                       const call_options& options);
}  // namespace detail

/// Reduces the `input` of all ranks, element by element, to the `output` of rank `root`. `input` is
/// [count], with the same count on all ranks, which may be 0. `output` is [count] at the root, and
/// is not touched at other ranks, where it may be empty. In place, both are the same range. Returns
/// when `output` is complete at the root; the caller may then reuse `input`.
///
/// Elements are reduced as in `all_reduce`, with the same result.
///
/// Algorithm: all ranks publish slices, and the root reduces them. Cost: ceil(bytes / slice)
/// rounds, at least one. Each byte is written once, and put to the root if that cannot read it; the
/// root reads each byte of all ranks once.
/// An input `in_window` of `team_options::window_bytes` or more is not staged: two rounds, and the
/// root reads each byte where it lies.
/// Throws, on all ranks: `error` mismatch, refused or invalid_argument as `team` says, poisoned.
/// Also timed_out, peer_dead and unreachable, which poison the communicator.
template <spannable Input, detail::output_range Output, reduction<detail::element_of<Input>> Op>
  requires detail::same_elements<Input, Output>
void reduce(team& on, const Input& input, Output&& output, const Op& op, rank_id root,
            const call_options& options = {}) {
  const detail::operands given = detail::operands_of(input, output);
  const auto reduce = detail::reducer::of<detail::element_of<Input>>(op);
  detail::by_lanes(on, "reduce", options, [&] {
    detail::reduce_bytes(on, given, reduce, root, options).run(given, reduce);
  });
}

/// Does the first half of `reduce`, with the same arguments. `pending::finish` does the rest.
/// `pending` says what holds between the halves. `op` is copied, so it is trivially copyable and no
/// larger than 64 bytes.
template <spannable Input, detail::output_range Output,
          detail::kept_reduction<detail::element_of<Input>> Op>
  requires detail::same_elements<Input, Output> && detail::lasting_range<Input> &&
           detail::lasting_range<Output>
pending start_reduce(team& on, Input&& input, Output&& output, const Op& op, rank_id root,
                     const call_options& options = {}) {
  const detail::operands given = detail::operands_of(input, output);
  const auto reduce = detail::kept_reducer::of<detail::element_of<Input>>(op);
  return {detail::reduce_bytes(on, given, reduce.get(), root, options), given, reduce};
}

}  // namespace peerbus::collective

#ifndef PEERBUS_COMPILED
#include <peerbus/collective/reduce.ipp>  // IWYU pragma: keep
#endif
