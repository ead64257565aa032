// SPDX-License-Identifier: MIT
#pragma once

#include <span>

#include <peerbus/collective/call_options.hpp>
#include <peerbus/collective/detail/carry_out.hpp>
#include <peerbus/collective/detail/operands.hpp>
#include <peerbus/collective/detail/reducer.hpp>
#include <peerbus/collective/pending.hpp>
#include <peerbus/collective/reduction.hpp>
#include <peerbus/collective/request.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/communicator/window.hpp>

namespace peerbus::collective {

namespace detail {

/// Returns the request of an `all_reduce_add`. It treats operands in windows as other memory.
template <spannable Input, spannable Residual, output_range Output>
[[nodiscard]] request request_of(const Input& input, const Residual& residual,
                                 Output& output) noexcept {
  request made = request_of(operation_kind::all_reduce_add, input, output);
  made.input_in = {};
  made.residual = std::as_bytes(std::span{residual});
  return made;
}

}  // namespace detail

/// Adds the `input` of all ranks and `residual`, element by element, and writes the sum to the
/// `output` of every rank. In one pass, that is the sum of partial products of a layer whose
/// weights are divided among ranks, and the layer's residual connection. All three are [count],
/// with the same count on all ranks, which may be 0. `residual` must be the same on all ranks,
/// which is not checked. `output` may be the same range as `input` or `residual`. Returns when
/// `output` is complete; the caller may then reuse `input`.
///
/// Elements are added in the order of ranks, `residual` last, in `accumulator_t`, and rounded once.
/// Equal inputs give equal bits on every rank and in every run, over every transport.
///
/// Algorithm and cost: as `all_reduce`, by an algorithm that keeps the order of ranks. Each rank
/// reads the bytes of `residual` that it reduces once. Operands `in_window` are staged.
/// Throws, on all ranks: `error` mismatch, refused or invalid_argument as `team` says, poisoned.
/// Also timed_out, peer_dead and unreachable, which poison the communicator.
template <spannable Input, spannable Residual, detail::output_range Output>
  requires detail::same_elements<Input, Output> && detail::same_elements<Residual, Output> &&
           reduction<sum, detail::element_of<Input>>
void all_reduce_add(team& team, const Input& input, const Residual& residual, Output&& output,
                    const call_options& options = {}) {
  static constexpr sum add{};
  detail::carry_out(team, detail::request_of(input, residual, output),
                    detail::reducer::of<detail::element_of<Input>>(add), options);
}

/// Does the first half of `all_reduce_add`, with the same arguments. `pending::finish` does the
/// rest. `pending` says what holds between the halves.
template <spannable Input, spannable Residual, detail::output_range Output>
  requires detail::same_elements<Input, Output> && detail::same_elements<Residual, Output> &&
           reduction<sum, detail::element_of<Input>> && detail::lasting_range<Input> &&
           detail::lasting_range<Residual> && detail::lasting_range<Output>
pending start_all_reduce_add(team& team, Input&& input, Residual&& residual, Output&& output,
                             const call_options& options = {}) {
  static constexpr sum add{};
  return detail::start_add(team, detail::request_of(input, residual, output),
                           detail::reducer::of<detail::element_of<Input>>(add), options);
}

}  // namespace peerbus::collective
