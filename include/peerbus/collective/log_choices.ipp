// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include <peerbus/collective/algorithm.hpp>
#include <peerbus/collective/detail/algorithm_choice.hpp>
#include <peerbus/collective/log_choices.hpp>
#include <peerbus/core/cost_table.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/core/this_machine.hpp>

namespace peerbus::collective {

namespace detail {

/// Returns the algorithms of an operation by size, such as "one_shot, above 4096 bytes two_shots".
inline std::string describe_algorithms(const team& made, choice_of operation) {
  constexpr std::size_t largest = std::size_t{1} << 40U;
  algorithm latest = made.algorithm_of(operation, 0);
  std::string text{name_of(latest)};
  const auto look_above = [&](std::size_t bytes) {
    const algorithm next = made.algorithm_of(operation, bytes + 1);
    if (next != latest)
      text += peerbus::detail::concat(", above ", bytes, " bytes ", name_of(next));
    latest = next;
  };
  // Choices change at powers of two, and where options say.
  std::size_t limit = made.options().one_shot_bytes.value_or(largest);
  for (std::size_t bytes = 1; bytes < largest; bytes *= 2) {
    if (limit < bytes) look_above(std::exchange(limit, largest));
    look_above(bytes);
  }
  return text;
}

/// Returns why a team takes its algorithms, and what changes that.
inline std::string describe_reason(const team& made) {
  const team_options& options = made.options();
  if (options.algorithm != algorithm::automatic)
    return peerbus::detail::concat("as option algorithm is ", name_of(options.algorithm),
                                   ", wherever that is possible");
  return peerbus::detail::concat(
      "by ",
      has_costs_of(options.costs, made.shape().access) ? "option costs"
                                                       : "the costs that the library assumes",
      options.one_shot_bytes ? " and option one_shot_bytes" : "", "; option algorithm fixes it");
}

}  // namespace detail

PEERBUS_INLINE void log_choices(const team& made, log_sink sink) {
  constexpr std::pair<choice_of, std::string_view> operations[]{
      {choice_of::all_reduce, "all_reduce"},
      {choice_of::all_gather, "all_gather"},
      {choice_of::reduce_scatter, "reduce_scatter"},
      {choice_of::broadcast, "broadcast"}};
  const std::string why = detail::describe_reason(made);
  const team_options& options = made.options();
  if (options.algorithm == algorithm::automatic && !options.costs.machine().empty() &&
      detail::has_costs_of(options.costs, made.shape().access))
    sink(log_level::info, describe_origin(options.costs, this_machine()));
  for (const auto& [operation, name] : operations)
    sink(log_level::info, peerbus::detail::concat(
                              name, ": ", detail::describe_algorithms(made, operation), ", ", why));
}

}  // namespace peerbus::collective
