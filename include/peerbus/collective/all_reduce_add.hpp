// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>

#include <peerbus/collective/all_reduce.hpp>
#include <peerbus/collective/call_options.hpp>
#include <peerbus/collective/detail/by_lanes.hpp>
#include <peerbus/collective/detail/operands.hpp>
#include <peerbus/collective/detail/reducer.hpp>
#include <peerbus/collective/pending.hpp>
#include <peerbus/collective/reduction.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/communicator/window.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::collective {

namespace detail {

/// A sum with the residual as one source more, behind those of all ranks. The own source tells
/// which elements are added, because it lies in the input.
struct sum_with_residual {
  reducer add;                          ///< the sum
  const std::byte* input;               ///< of this rank
  const std::byte* residual;            ///< what is added last
  std::span<const std::byte*> sources;  ///< of all ranks, and the residual
  rank_id self;                         ///< the rank of the caller

  /// Makes it for the operands of an operation.
  sum_with_residual(team& on, const reducer& sum, const operands& given) noexcept;

  /// Returns the reduction, which refers to this object.
  [[nodiscard]] reducer reduce() const noexcept { return {"sum+add", this, &combine}; }

 private:
  static void combine(const void* callable, std::byte* out, std::span<const std::byte* const> ranks,
                      std::size_t first, std::size_t elements) noexcept;
};

/// Does `all_reduce_add` for elements of any type. `add` is their sum.
void all_reduce_add_bytes(team& on, const operands& given, const reducer& add,
                          const call_options& options);

/// Returns the operands of an `all_reduce_add`.
template <spannable Input, spannable Residual, output_range Output>
[[nodiscard]] operands operands_of(const Input& input, const Residual& residual,
                                   Output& output) noexcept {
  operands made = operands_of(input, output);
  made.input_in = {};
  made.residual = std::as_bytes(std::span{residual});
  return made;
}

}  // namespace detail

/// Adds the `input` of all ranks and `residual`, element by element, to the `output` of every rank:
/// the sum of partial products of a layer whose weights are divided among ranks, and the layer's
/// residual connection, in one pass. All three are [count], with the same count on all ranks, which
/// may be 0. `residual` is the same on all ranks, which is not checked. `output` may be the same
/// range as `input` or `residual`. Returns when `output` is complete; the caller may then reuse
/// `input`.
///
/// Elements are added in the order of ranks, `residual` last, in `accumulator_t`, and rounded once.
/// Equal inputs give equal bits on every rank and in every run, over every transport.
///
/// Algorithm and cost: as `all_reduce`, by an algorithm that keeps the order of ranks. Each rank
/// reads the bytes of `residual` that it reduces once. Operands `in_window` are staged. Throws, on
/// all ranks: `error` mismatch, refused or invalid_argument as `team` says, poisoned. Also
/// timed_out, peer_dead and unreachable, which poison the communicator.
template <spannable Input, spannable Residual, detail::output_range Output>
  requires detail::same_elements<Input, Output> && detail::same_elements<Residual, Output> &&
           reduction<sum, detail::element_of<Input>>
void all_reduce_add(team& on, const Input& input, const Residual& residual, Output&& output,
                    const call_options& options = {}) {
  static constexpr sum add{};
  detail::by_lanes(on, "all_reduce_add", options, [&] {
    detail::all_reduce_add_bytes(on, detail::operands_of(input, residual, output),
                                 detail::reducer::of<detail::element_of<Input>>(add), options);
  });
}

/// Does the first half of `all_reduce_add`, with the same arguments. `pending::finish` does the
/// rest. `pending` says what holds between the halves.
template <spannable Input, spannable Residual, detail::output_range Output>
  requires detail::same_elements<Input, Output> && detail::same_elements<Residual, Output> &&
           reduction<sum, detail::element_of<Input>> && detail::lasting_range<Input> &&
           detail::lasting_range<Residual> && detail::lasting_range<Output>
pending start_all_reduce_add(team& on, Input&& input, Residual&& residual, Output&& output,
                             const call_options& options = {}) {
  static constexpr sum add{};
  const detail::operands given = detail::operands_of(input, residual, output);
  const detail::sum_with_residual fused{on, detail::reducer::of<detail::element_of<Input>>(add),
                                        given};
  return {
      detail::all_reduce_bytes(on, given, fused.reduce(), options), given, {fused.reduce(), fused}};
}

}  // namespace peerbus::collective

#ifndef PEERBUS_COMPILED
#include <peerbus/collective/all_reduce_add.ipp>  // IWYU pragma: keep
#endif
