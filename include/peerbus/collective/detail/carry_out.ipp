// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include <peerbus/collective/algorithm.hpp>
#include <peerbus/collective/detail/by_lanes.hpp>
#include <peerbus/collective/detail/call_header.hpp>
#include <peerbus/collective/detail/call_rounds.hpp>
#include <peerbus/collective/detail/carry_out.hpp>
#include <peerbus/collective/detail/divided.hpp>
#include <peerbus/collective/detail/doubling.hpp>
#include <peerbus/collective/detail/element_work.hpp>
#include <peerbus/collective/detail/full_mesh.hpp>
#include <peerbus/collective/detail/operands.hpp>
#include <peerbus/collective/detail/part_exchange.hpp>
#include <peerbus/collective/detail/part_tables.hpp>
#include <peerbus/collective/detail/pattern.hpp>
#include <peerbus/collective/detail/private_reads.hpp>
#include <peerbus/collective/detail/sum_with_residual.hpp>
#include <peerbus/collective/detail/team_access.hpp>
#include <peerbus/collective/detail/two_level_gather.hpp>
#include <peerbus/collective/detail/two_shots.hpp>
#include <peerbus/collective/detail/way_trials.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::collective::detail {

/// Returns the algorithm of a request. An element may be too large for the slices of an algorithm
/// that divides them further.
PEERBUS_INLINE algorithm algorithm_for(team& team, const request& asked,
                                       const reducer& reduce) noexcept {
  const auto if_it_fits = [&](algorithm by, choice_of choice) noexcept {
    const bool divides = by != algorithm::one_shot && by != algorithm::two_shots;
    return divides && whole_slice(by, choice, team.shape(), asked.element.bytes) == 0
               ? algorithm::one_shot
               : by;
  };
  switch (asked.what) {
    case operation_kind::broadcast:
      return team.algorithm_of(choice_of::broadcast, asked.output.size());
    case operation_kind::all_gather:
      return team.algorithm_of(choice_of::all_gather, asked.input.size());
    case operation_kind::all_reduce:
    case operation_kind::all_reduce_add:
      return if_it_fits(team_access::algorithm_of_all_reduce(team, asked, reduce.name()),
                        choice_of::all_reduce);
    case operation_kind::reduce_scatter:
      return if_it_fits(team_access::algorithm_of_reduce_scatter(team, asked, reduce.name()),
                        choice_of::reduce_scatter);
    default: return algorithm::one_shot;
  }
}

/// Returns the function that carries out an operation by an algorithm.
PEERBUS_INLINE operation::body* carried_out_by(operation_kind what, algorithm by) noexcept {
  const pattern& kind = pattern_of(what);
  switch (by) {
    case algorithm::two_shots: return all_reduce_in_two_shots;
    case algorithm::doubling: return kind.reduces ? all_reduce_by_doubling : all_gather_by_doubling;
    case algorithm::ring: return kind.input_rows ? reduce_scatter_by_ring : all_reduce_by_ring;
    case algorithm::two_levels:
      if (kind.reduces)
        return kind.input_rows ? reduce_scatter_by_two_levels : all_reduce_by_two_levels;
      return kind.output_rows ? all_gather_by_two_levels : broadcast_by_two_levels;
    default: break;
  }
  if (!kind.varies) return full_mesh;
  return kind.reduces ? reduce_parts : kind.input_rows ? copy_own_parts : copy_shared_parts;
}

/// Returns whether the sizes of operands fit together. This rank has an input if it `gives` and an
/// output if it `takes`.
PEERBUS_INLINE bool sizes_fit(const pattern& kind, const request& asked, std::size_t ranks,
                              bool gives, bool takes) noexcept {
  const std::size_t input = asked.input.size();
  const std::size_t output = asked.output.size();
  if (kind.input_rows && kind.output_rows)
    return input == output && input % (ranks * asked.element.bytes) == 0;
  if (kind.input_rows) return !gives || input == ranks * output;
  if (kind.output_rows) return !takes || output == ranks * input;
  return !kind.reduces || !takes || output == input;
}

/// Describes why the sizes of operands do not fit together. They must not fit.
PEERBUS_ERROR_PATH std::string object_to_sizes(const pattern& kind, const request& asked,
                                               std::size_t ranks) {
  const std::size_t input = asked.input_count();
  const std::size_t output = asked.output_count();
  if (kind.input_rows && kind.output_rows && input % ranks != 0)
    return indivisible("input", input, ranks);
  if (kind.input_rows == kind.output_rows) return wrong_size("output", output, 1, input);
  return kind.input_rows ? wrong_size("input", input, ranks, output)
                         : wrong_size("output", output, ranks, input);
}

/// Returns the objection to a request, or an empty string. Fills the tables of a variable form.
PEERBUS_INLINE std::string object_to_request(team& team, const request& asked) {
  const pattern& kind = pattern_of(asked.what);
  if (kind.reduces) {
    const std::size_t slice = team.map().slice_bytes(kind.one_takes ? 1 : team.size());
    if (slice < asked.element.bytes) return too_large(asked.element, slice);
  }
  if (kind.has_root() && asked.root.index() >= team.size()) return wrong_root(team, asked.root);
  if (kind.varies)
    return object_to_parts(team_access::sends(team), team_access::receives(team), team.rank(),
                           asked);
  const bool gives = kind.gives(team.rank() == asked.root);
  const bool takes = kind.takes(team.rank() == asked.root);
  if (!sizes_fit(kind, asked, team.size(), gives, takes))
    return object_to_sizes(kind, asked, team.size());
  const std::size_t row = kind.input_rows == kind.output_rows
                              ? 0
                              : team.rank().index() * block_bytes(kind, asked, team.size());
  // The data of a broadcast are an input at the root and an output elsewhere.
  const bool has_input = gives || asked.what == operation_kind::broadcast;
  return object_to(asked, has_input, takes, row);
}

/// Returns where peers access the operands of a request, none of which lies in a window.
PEERBUS_INLINE operand_place place_outside_windows(const team& team, const request& asked,
                                                   algorithm by) noexcept {
  const pattern& kind = pattern_of(asked.what);
  const std::size_t row = kind.varies ? ~std::size_t{0} : block_bytes(kind, asked, team.size());
  const bool is_read = by == algorithm::one_shot && team.shape().access == page_access::loads &&
                       team_access::reads(team).are_offered(kind, row);
  return is_read ? operand_place::private_memory : operand_place::memory;
}

/// Returns where peers access the operands of a request.
PEERBUS_INLINE operand_place place_for(const team& team, const request& asked,
                                       algorithm by) noexcept {
  if (asked.input_in.part_of == nullptr) return place_outside_windows(team, asked, by);
  const pattern& kind = pattern_of(asked.what);
  const bool is_in_place = !asked.output.empty() && asked.is_in_place();
  // This rank overwrites what its peers would read.
  if (kind.input_rows && kind.output_rows && is_in_place)
    return place_outside_windows(team, asked, by);
  const bool is_all_reduce = kind.reduces && !kind.input_rows && !kind.one_takes;
  if (!is_all_reduce) return operand_place::window;
  if (asked.is_in_place()) return operand_place::window_in_place;
  return by == algorithm::one_shot ? operand_place::window : operand_place::memory;
}

PEERBUS_INLINE operation begin(team& team, const request& asked, const reducer& reduce,
                               const call_options& options) {
  const pattern& kind = pattern_of(asked.what);
  if (kind.varies) team_access::require_ready(team, kind.name);
  std::string objection = object_to_request(team, asked);
  const way_trials::running trial = team_access::trial_of(team, asked);
  const algorithm by =
      trial.counts ? algorithm_of_way(trial.way) : algorithm_for(team, asked, reduce);
  const std::uint64_t count = kind.varies
                                  ? call_header::varied
                                  : block_bytes(kind, asked, team.size()) / asked.element.bytes;
  call_header header;
  header.operation = kind.operation;
  if (kind.reduces) header.reduction = reduce.name();
  header.element = asked.element;
  if (kind.has_root()) header.root = static_cast<std::uint32_t>(asked.root.index());
  header.count = count;
  header.place = place_for(team, asked, by);
  header.offset = header.place == operand_place::private_memory ? private_reads::offer(kind, asked)
                                                                : asked.input_in.offset;
  if (header.is_in_window()) header.window = asked.input_in.number & call_header::window_mask;
  // A rank may be in a trial without the others, if their operands lie in a window.
  if (header.place == operand_place::memory && by == algorithm::two_shots)
    header.window = call_header::in_two_shots;
  operation begun{
      team, header, asked, options, std::move(objection), carried_out_by(asked.what, by)};
  if (trial.counts) begun.take_part(trial);
  if (begun.rounds().is_in_window() && header.place == operand_place::window_in_place)
    begun.carry_out_by(all_reduce_in_window);
  return begun;
}

PEERBUS_INLINE void carry_out(team& team, const request& asked, const reducer& reduce,
                              const call_options& options) {
  by_lanes(team, pattern_of(asked.what).name, options, [&] {
    if (!asked.residual) return begin(team, asked, reduce, options).run(asked, {reduce});
    const sum_with_residual fused{team, reduce, asked};
    begin(team, asked, fused.reduce(), options).run(asked, {fused.reduce()});
  });
}

PEERBUS_INLINE pending start(team& team, const request& asked, const kept_work& work,
                             const call_options& options) {
  return {begin(team, asked, work.get().reduce, options), asked, work};
}

PEERBUS_INLINE pending start_add(team& team, const request& asked, const reducer& sum,
                                 const call_options& options) {
  const sum_with_residual fused{team, sum, asked};
  return {begin(team, asked, fused.reduce(), options), asked, {fused.reduce(), fused}};
}

}  // namespace peerbus::collective::detail
