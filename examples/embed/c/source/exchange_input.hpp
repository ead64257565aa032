// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include <peerbus/core/bf16.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/balance/incremental.hpp>
#include <peerbus/moe/call_options.hpp>
#include <peerbus/moe/combine_terms.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/expert_map.hpp>
#include <peerbus/moe/replica_choice.hpp>
#include <peerbus/moe/routing.hpp>

#include "failure.hpp"

/// The arguments of an exchange's calls, from C to C++.
namespace peerbus::c_library {

/// The input of a dispatch, with tokens of any type.
struct dispatch_input {
  const void* tokens;
  std::size_t values;  ///< of all tokens
  moe::routing route;
  moe::dispatch_options options;
  std::optional<error> problem;  ///< why `options` make all ranks refuse
};

/// Returns the input that `args` describe, for tokens whose values have `value_bytes` bytes. If
/// they describe none, returns one that all ranks refuse, so that no rank waits for this one.
dispatch_input read_input(const peerbus_dispatch_args& args, const moe::exchange_config& config,
                          std::size_t value_bytes, std::size_t ranks);

/// Returns the sums that `args` name: [count, hidden]. Throws: `error` invalid_argument.
std::span<bf16> read_out(const peerbus_combine_args& args, const moe::exchange_config& config);
/// Returns the terms that `args` name. Throws: `error` invalid_argument.
moe::combine_terms read_terms(const peerbus_combine_args& args, const moe::exchange_config& config);

/// Returns the choice that `given` describes for `physical_experts` places, as many `experts` and
/// `ranks`, or the default for null. Throws: `error` invalid_argument.
moe::replica_choice read_choice(const peerbus_replica_choice* given, std::size_t physical_experts,
                                std::size_t experts, std::size_t ranks);
/// Returns the limits of a planner, for which `most_moves` 0 stands for any number.
inline moe::incremental_limits limits_of(double least_gain, std::size_t most_moves,
                                         std::size_t fixed_slots) {
  moe::incremental_limits limits{.least_gain = least_gain, .fixed_slots = fixed_slots};
  if (most_moves != 0) limits.most_moves = most_moves;
  return limits;
}
/// Throws: `error` invalid_argument unless a table that has the places of `experts` was given.
inline void require_places(const moe::expert_map& experts, std::size_t given) {
  if (given != experts.physical_experts())
    throw error{errc::invalid_argument,
                concat("physical_to_logical has ", given, " entries, expected physical experts, ",
                       experts.physical_experts())};
}
/// Sets the experts, their places and the choice among replicas of `config`.
/// Throws: `error` invalid_argument.
void read_experts(const peerbus_exchange_config& given, std::size_t ranks,
                  moe::exchange_config& config);

/// Returns `call()`. If that threw because `problem` made it refuse, throws `problem`.
template <class Call>
auto explained(const std::optional<error>& problem, Call&& call) {
  try {
    return call();
  } catch (const error& thrown) {
    if (problem && thrown.code() == errc::invalid_argument) throw error{*problem};
    throw;
  }
}

/// Calls `read()` and returns `call()`. If `read` throws an error, calls `spoil()` between them,
/// after which all ranks refuse the call, so that no rank waits for this one, which throws the
/// error.
template <class Read, class Spoil, class Call>
auto call_or_refuse(Read&& read, Spoil&& spoil, Call&& call) {
  std::optional<error> problem;
  try {
    read();
  } catch (const error& found) {
    problem = found;
    spoil();
  }
  return explained(problem, call);
}

}  // namespace peerbus::c_library
