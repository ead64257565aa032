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

///@{
/// Reduces the `input` of all ranks, element by element, to the `output` of every rank. Both are
/// [count], with the same count on all ranks, which may be 0. In place, both are the same range,
/// `data`. Returns when `output` is complete; the caller may then reuse `input`.
///
/// Elements are reduced in the order of ranks, in `accumulator_t`, and rounded once. Equal inputs
/// give equal bits on every rank and in every run, over every transport and by every algorithm
/// except `ring` and `two_levels`. These two algorithms give equal bits on every rank and in every
/// run, but reduce in another order, and round each partial result. They are used for sums,
/// products, minima and maxima of integers, which do not depend on the order, and with
/// `team_options::may_reorder`.
///
/// Algorithm: that of `team::algorithm_of`. n ranks; R is bytes / `slice_of`, rounded up, at
/// least 1. `cost_us` computes times.
///
/// - `one_shot`: each rank publishes its input and reduces the inputs of all ranks. R rounds. Each
///   byte is written once, put to each peer that cannot read it, and read once for each rank.
/// - `two_shots`: each rank reduces one part of the elements, as in `reduce_scatter`, and publishes
///   the result, as in `all_gather`. 2 R rounds. Each byte is written, put, read and copied about
///   twice, whatever the number of ranks.
/// - `doubling`: the inputs of 1, 2, 4 and more ranks go from rank to rank, and each rank reduces
///   the inputs of all ranks. R ceil(log2 n) steps, with one message each; bytes as `one_shot`.
/// - `ring`: one round, and 2 R (n-1) steps with one message each, to the next rank only. Bytes as
///   `two_shots`.
/// - `two_levels`: 3 R rounds. Of g groups of m near ranks, each rank puts (g-1)/m of its bytes.
///
/// Operands `in_window`, in place, of `team_options::window_bytes` or more take two rounds: each
/// rank reduces one part of the elements in the window, and stores the result to all operands. Each
/// byte is read once for each rank that reduces it, and stored once. An input `in_window` that is
/// not the output is read in the window in one shot, if costs and options say so. Otherwise it is
/// staged.
/// Throws, on all ranks: `error` mismatch, refused or invalid_argument as `team` says, poisoned.
/// Also timed_out, peer_dead and unreachable, which poison the communicator.
template <spannable Input, detail::output_range Output, reduction<detail::element_of<Input>> Op>
  requires detail::same_elements<Input, Output>
void all_reduce(team& team, const Input& input, Output&& output, const Op& op,
                const call_options& options = {}) {
  const request asked = detail::request_of(operation_kind::all_reduce, input, output);
  detail::carry_out(team, asked, detail::reducer::of<detail::element_of<Input>>(op), options);
}
template <detail::output_range Data, reduction<detail::element_of<Data>> Op>
void all_reduce(team& team, Data&& data, const Op& op, const call_options& options = {}) {
  all_reduce(team, data, data, op, options);
}
///@}

///@{
/// Does the first half of `all_reduce`, with the same arguments. `pending::finish` does the rest.
/// `pending` says what holds between the halves. `op` is copied, so it must be trivially copyable
/// and no larger than 64 bytes.
template <spannable Input, detail::output_range Output,
          detail::kept_reduction<detail::element_of<Input>> Op>
  requires detail::same_elements<Input, Output> && detail::lasting_range<Input> &&
           detail::lasting_range<Output>
pending start_all_reduce(team& team, Input&& input, Output&& output, const Op& op,
                         const call_options& options = {}) {
  const request asked = detail::request_of(operation_kind::all_reduce, input, output);
  return detail::start(team, asked, detail::kept_work::reduction_of<detail::element_of<Input>>(op),
                       options);
}
template <detail::output_range Data, detail::kept_reduction<detail::element_of<Data>> Op>
  requires detail::lasting_range<Data>
pending start_all_reduce(team& team, Data&& data, const Op& op, const call_options& options = {}) {
  return start_all_reduce(team, data, data, op, options);
}
///@}

}  // namespace peerbus::collective
