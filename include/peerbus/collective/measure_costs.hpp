// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>

#include <peerbus/collective/algorithm.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/communicator/communicator.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/cost_table.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::collective {

/// The numbers of repetitions of `measure_costs`, and its other options. The same on all ranks.
struct measure_options {
  std::size_t turns = 9;            ///< the number of times whose median is taken, at least 1
  std::size_t calls = 50;           ///< the number of calls that are timed together, at least 1
  team_options team{};              ///< options of the teams; `algorithm` and `costs` are ignored
  std::optional<deadline> until{};  ///< empty: the default timeout of the communicator
};

namespace detail {

/// The teams on which costs are measured, each with one algorithm.
struct measured_teams {
  team& one_shot;
  team& doubling;
  team& ring;
};

/// Measures and returns the costs of the teams' access. Collective.
access_costs measure_access(const measured_teams& teams, const measure_options& options);

/// Sets the costs of an access in a table, as measured on this machine.
void set_costs(cost_table& table, page_access access, const access_costs& costs);

}  // namespace detail

/// Returns `table` after replacing the costs of this communicator's access by costs that all ranks
/// measure. All ranks return the same costs, each with the name of its own machine
/// (`cost_table::machine`). `cost_table::file_text` makes the text of a file. Collective, with
/// equal options.
///
/// Each time is the median over the turns, of the slowest rank. T(x) is the time of `all_gather` of
/// 8 bytes by algorithm x, and B a slice:
///
/// - full = T(one_shot). Where pages are put, step = T(doubling) / ceil(log2 n);
/// - `message_us` = (full - step) / (n - 2), and `round_us` = step - `message_us`. For loads, and
///   for two ranks, `message_us` is 0, and `round_us` is full;
/// - `byte_ns` = (time of `all_gather` of B by one_shot - full) / ((n-1) B). Over planes, the part
///   of near ranks is subtracted;
/// - `reduce_byte_ns` = time of the sum of two ranges of B bytes of f32 / 2 B;
/// - `near_byte_ns` = time of copying B bytes / B, while all ranks copy;
/// - `ring_byte_ns`, from an `all_reduce` of n slices by ring, by the formula of `cost_us`. For
///   loads, and for two ranks, it is `byte_ns`.
///
/// No cost is less than 0. With one rank, `table` is returned unchanged.
/// Cost: a few thousand operations, and the memory of three teams until it returns.
/// Throws, on all ranks: as the constructor of `team`, and as operations.
template <transport Transport>
[[nodiscard]] cost_table measure_costs(communicator<Transport>& comm, cost_table table = {},
                                       const measure_options& options = {}) {
  if (comm.size() == 1) return table;
  const auto options_for = [&](algorithm by) {
    team_options chosen = options.team;
    chosen.algorithm = by;
    chosen.costs = {};
    return chosen;
  };
  team one_shot{comm, options_for(algorithm::one_shot), options.until};
  team doubling{comm, options_for(algorithm::doubling), options.until};
  team ring{comm, options_for(algorithm::ring), options.until};
  detail::set_costs(table, one_shot.shape().access,
                    detail::measure_access({one_shot, doubling, ring}, options));
  return table;
}

}  // namespace peerbus::collective

#ifndef PEERBUS_COMPILED
#include <peerbus/collective/measure_costs.ipp>  // IWYU pragma: keep
#endif
