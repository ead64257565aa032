// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/collective/call_options.hpp>
#include <peerbus/collective/detail/carry_out.hpp>
#include <peerbus/collective/detail/element_work.hpp>
#include <peerbus/collective/detail/operands.hpp>
#include <peerbus/collective/detail/reducer.hpp>
#include <peerbus/collective/pending.hpp>
#include <peerbus/collective/reduction.hpp>
#include <peerbus/collective/request.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/communicator/window.hpp>

namespace peerbus::collective {

/// Reduces row `rank` of the `input` of every rank to the `output` of rank `rank`. `input` is
/// [ranks, count] and `output` is [count], with the same count on all ranks, which may be 0. In
/// place, `output` is row `rank` of `input`; the other rows stay as they are. Returns when `output`
/// is complete; the caller may then reuse `input`.
///
/// Elements are reduced in the order of ranks, in `accumulator_t`, and rounded once. Equal inputs
/// give equal bits in every run, over every transport and by every algorithm except `ring` and
/// `two_levels`. These two algorithms give equal bits in every run, but reduce in another order and
/// round each partial result, as `all_reduce` says.
///
/// Algorithm: that of `team::algorithm_of` for the bytes of a row. n ranks; R is the bytes of a row
/// / `slice_of`, rounded up, at least 1. `cost_us` computes times.
///
/// - `one_shot`: full mesh. Each rank publishes a part for each peer, and each peer reduces the
///   parts of all ranks for it. R rounds. Each byte of `input` is written once, and put to its peer
///   if the peer cannot read it; the bytes of a row are read once for each rank.
/// - `ring`: one round, and R (n-1) steps with one message each, to the next rank only. The
///   messages have n-1 rows in all.
/// - `two_levels`: 2 R rounds. Of g groups of near ranks, each rank puts g-1 rows.
///
/// An input `in_window` with rows of `team_options::window_bytes` or more is not staged: two
/// rounds, and each byte of a row is read in the window.
/// Throws, on all ranks: `error` mismatch, refused or invalid_argument as `team` says, poisoned.
/// Also timed_out, peer_dead and unreachable, which poison the communicator.
template <spannable Input, detail::output_range Output, reduction<detail::element_of<Input>> Op>
  requires detail::same_elements<Input, Output>
void reduce_scatter(team& team, const Input& input, Output&& output, const Op& op,
                    const call_options& options = {}) {
  const request asked = detail::request_of(operation_kind::reduce_scatter, input, output);
  detail::carry_out(team, asked, detail::reducer::of<detail::element_of<Input>>(op), options);
}

/// Does the first half of `reduce_scatter`, with the same arguments. `pending::finish` does the
/// rest. `pending` says what holds between the halves. `op` is copied, so it must be trivially
/// copyable and no larger than 64 bytes.
template <spannable Input, detail::output_range Output,
          detail::kept_reduction<detail::element_of<Input>> Op>
  requires detail::same_elements<Input, Output> && detail::lasting_range<Input> &&
           detail::lasting_range<Output>
pending start_reduce_scatter(team& team, Input&& input, Output&& output, const Op& op,
                             const call_options& options = {}) {
  const request asked = detail::request_of(operation_kind::reduce_scatter, input, output);
  return detail::start(team, asked, detail::kept_work::reduction_of<detail::element_of<Input>>(op),
                       options);
}

}  // namespace peerbus::collective
