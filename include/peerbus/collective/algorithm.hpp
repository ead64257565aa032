// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

#include <peerbus/collective/team_map.hpp>

namespace peerbus::collective {

/// An algorithm by which the ranks of a team carry out an operation.
enum class algorithm : std::uint8_t {
  automatic,  ///< the cheapest one by the team's costs
  one_shot,   ///< full mesh: each rank gets the operands of all, in one round
  two_shots,  ///< full mesh: each rank reduces a part, then all ranks gather the parts
  doubling,   ///< each rank gets the operands of all, in ceil(log2 n) steps with one message each
  ring,       ///< parts go from neighbour to neighbour, to be reduced, and then to be gathered
  two_levels  ///< works within near ranks, and among far ranks with equal places
};

/// The names of algorithms, in the order of their values.
inline constexpr std::array<std::string_view, 6> algorithm_names{
    "automatic", "one_shot", "two_shots", "doubling", "ring", "two_levels"};

/// Returns the name of an algorithm, such as "two_shots".
[[nodiscard]] constexpr std::string_view name_of(algorithm named) noexcept {
  return algorithm_names[static_cast<std::size_t>(named)];
}

/// The operations that have several algorithms.
enum class choice_of : std::uint8_t {
  all_reduce,      ///< `collective::all_reduce` and `all_reduce_add`
  all_gather,      ///< `collective::all_gather`
  reduce_scatter,  ///< `collective::reduce_scatter`
  broadcast        ///< `collective::broadcast`
};

/// The way by which peers get the pages of a team's ranks. The names of costs contain it.
enum class page_access : std::uint8_t {
  loads,  ///< peers load pages
  puts,   ///< ranks put pages to peers
  planes  ///< near peers load pages, and ranks put them to far peers
};

/// Returns the name of an access in the names of costs: "loads", "puts" or "planes".
[[nodiscard]] constexpr std::string_view name_of(page_access access) noexcept {
  return std::array<std::string_view, 3>{"loads", "puts",
                                         "planes"}[static_cast<std::size_t>(access)];
}

/// The costs of an access from which the cost of an algorithm is computed. The name of each cost in
/// a `cost_table` is `collective.<access>.<member>`, such as `collective.puts.round_us`.
struct access_costs {
  double round_us = 0;        ///< alpha: from the signal of the last rank until a rank has seen it
  double message_us = 0;      ///< a message to a peer; for loads, a cache line of a peer
  double byte_ns = 0;         ///< beta: a byte that goes to one peer, while all ranks send
  double ring_byte_ns = 0;    ///< a byte to one peer, while each rank sends to one peer only
  double near_byte_ns = 0;    ///< a byte that a near peer loads
  double reduce_byte_ns = 0;  ///< gamma: a byte of a source that a rank reduces

  /// Returns the costs that the library assumes for an access without costs in a table. They stand
  /// for the memory of a host, for a network of 5 GB/s and a few microseconds, and, over planes,
  /// for a network of that kind that the ranks of a host share.
  [[nodiscard]] static constexpr access_costs assumed(page_access access) noexcept {
    if (access == page_access::loads) return {1.0, 0.05, 0.1, 0.1, 0.1, 0.05};
    if (access == page_access::puts) return {5.0, 1.0, 0.2, 0.2, 0.1, 0.05};
    return {5.0, 1.0, 1.0, 1.0, 0.1, 0.05};
  }
};

/// The shape of a team, on which the cost of an algorithm depends besides `access_costs`.
struct team_shape {
  team_map map;                             ///< the number of ranks, and the sizes of slices
  page_access access = page_access::loads;  ///< how pages get to peers
  std::size_t group_ranks = 1;              ///< the near ranks of each group; 1 if groups differ
  /// Returns the number of ranks.
  [[nodiscard]] constexpr std::size_t ranks() const noexcept { return map.ranks; }
  /// Returns the number of groups of near ranks.
  [[nodiscard]] constexpr std::size_t groups() const noexcept { return ranks() / group_ranks; }
};

/// Returns the number of steps of `doubling`: ceil(log2 n).
[[nodiscard]] constexpr std::size_t doubling_steps(std::size_t ranks) noexcept {
  return static_cast<unsigned>(std::bit_width(ranks - 1));
}

/// Returns the number of parts into which an algorithm divides the bytes of a round.
[[nodiscard]] constexpr std::size_t parts_of(algorithm by, choice_of operation,
                                             const team_shape& shape) noexcept {
  if (operation == choice_of::reduce_scatter) return shape.ranks();
  if (operation != choice_of::all_reduce) return 1;
  if (by == algorithm::two_shots || by == algorithm::ring) return shape.ranks();
  return by == algorithm::two_levels ? shape.group_ranks : 1;
}

/// Returns the bytes of each rank's input that an algorithm handles as one slice; for
/// `reduce_scatter`, the bytes of each rank's output. A slice holds whole elements of
/// `element_bytes` bytes. 0 if the algorithm cannot be used.
[[nodiscard]] constexpr std::size_t whole_slice(algorithm by, choice_of operation,
                                                const team_shape& shape,
                                                std::size_t element_bytes) noexcept {
  const team_map& map = shape.map;
  const std::size_t n = shape.ranks();
  const std::size_t parts = parts_of(by, operation, shape);
  std::size_t part = by == algorithm::automatic ? 0 : map.slice_bytes(parts);
  // The page has a row for each rank. A message has no more than half of them.
  if (by == algorithm::doubling)
    part = n < 2 || shape.access == page_access::loads
               ? 0
               : std::min(map.page_bytes / n, map.slot_bytes / (n / 2));
  if (by == algorithm::two_levels) {
    if (shape.group_ranks < 2 || shape.groups() < 2) return 0;
    // The page has a row for each group.
    if (operation == choice_of::all_gather) part = std::min(part, map.page_bytes / shape.groups());
  }
  const std::size_t taken = operation == choice_of::all_reduce ? parts : 1;
  return taken * (part / element_bytes * element_bytes);
}

/// Returns `whole_slice` for elements of one byte.
[[nodiscard]] constexpr std::size_t slice_of(algorithm by, choice_of operation,
                                             const team_shape& shape) noexcept {
  return whole_slice(by, operation, shape, 1);
}

/// Returns whether an algorithm reduces in the order of ranks: ((r0 + r1) + r2) and so on.
[[nodiscard]] constexpr bool keeps_rank_order(algorithm by) noexcept {
  return by != algorithm::ring && by != algorithm::two_levels;
}

/// Returns whether a team of this shape can carry out an operation by an algorithm.
[[nodiscard]] constexpr bool is_possible(algorithm by, choice_of operation,
                                         const team_shape& shape) noexcept {
  if (by == algorithm::one_shot) return true;
  if (slice_of(by, operation, shape) == 0) return false;
  const bool is_all_reduce = operation == choice_of::all_reduce;
  const bool is_reduce_scatter = operation == choice_of::reduce_scatter;
  if (by == algorithm::two_levels) return true;
  if (by == algorithm::doubling) return is_all_reduce || operation == choice_of::all_gather;
  if (by == algorithm::two_shots) return is_all_reduce && shape.ranks() > 2;
  return (is_all_reduce || is_reduce_scatter) && shape.ranks() > 2 &&
         shape.access != page_access::loads;
}

/// Returns the cost of an operation by an algorithm, in microseconds. `bytes` is the size of each
/// rank's input, or of its output for `reduce_scatter`. There are n ranks, of which m are near each
/// other. R = ceil(bytes / slice_of), at least 1; a = round_us; s = (n-1) x message_us; and b,
/// ring_b, near_b and g are the costs of a byte:
///
/// | algorithm  | microseconds                                                               |
/// | ---------- | -------------------------------------------------------------------------- |
/// | one_shot   | R (a + s) + bytes ((n-1) b + n g)                                          |
/// | two_shots  | 2 R (a + s) + bytes (2 (n-1)/n b + g)                                      |
/// | doubling   | R ceil(log2 n) (a + message_us) + bytes ((n-1) b + n g)                    |
/// | ring       | a + s + 2 R (n-1) (a + message_us) + bytes (2 (n-1)/n ring_b + 2 (n-1)/n g) |
/// | two_levels | 3 R (a + s) + bytes ((n/m - 1)/m b + 2 near_b + (1 + n/m/m) g)             |
///
/// Operations that reduce nothing have g = 0. Other operations than `all_reduce` cost:
///
/// | operation, algorithm       | microseconds                                               |
/// | -------------------------- | ----------------------------------------------------------- |
/// | all_gather, two_levels     | 2 R (a + s) + bytes ((n/m - 1) b + n near_b)                |
/// | broadcast, two_levels      | 2 R (a + s) + bytes ((n/m - 1) b + 2 near_b)                |
/// | reduce_scatter, two_levels | 2 R (a + s) + bytes ((n/m - 1) b + 2 n near_b + (n + n/m) g) |
/// | reduce_scatter, ring       | a + s + R (n-1) (a + message_us) + bytes (n-1) (ring_b + 2 g) |
///
/// The costs of bytes are nanoseconds. Over `planes`, bytes between near ranks cost near_b in
/// one_shot and two_shots. The result is infinite if the algorithm is not possible.
[[nodiscard]] constexpr double cost_us(algorithm by, choice_of operation, std::size_t bytes,
                                       const team_shape& shape,
                                       const access_costs& costs) noexcept {
  const std::size_t each = slice_of(by, operation, shape);
  if (!is_possible(by, operation, shape) || each == 0)
    return std::numeric_limits<double>::infinity();
  const auto n = static_cast<double>(shape.ranks());
  const auto near = static_cast<double>(shape.group_ranks);
  const auto groups = static_cast<double>(shape.groups());
  const auto rounds = static_cast<double>(bytes <= each ? 1 : (bytes - 1) / each + 1);
  const double full = costs.round_us + (n - 1) * costs.message_us;
  const double step = costs.round_us + costs.message_us;
  const double size = static_cast<double>(bytes) / 1000;  // So that nanoseconds are microseconds.
  const bool is_reduce_scatter = operation == choice_of::reduce_scatter;
  const bool reduces = operation == choice_of::all_reduce || is_reduce_scatter;
  const double gamma = reduces ? costs.reduce_byte_ns : 0;
  // A byte that goes from each rank to all others.
  const double mesh = (n - near) * costs.byte_ns + (near - 1) * costs.near_byte_ns;
  switch (by) {
    case algorithm::one_shot: return rounds * full + size * (mesh + n * gamma);
    case algorithm::two_shots: return 2 * rounds * full + size * (2 / n * mesh + gamma);
    case algorithm::doubling:
      return rounds * static_cast<double>(doubling_steps(shape.ranks())) * step +
             size * ((n - 1) * costs.byte_ns + n * gamma);
    case algorithm::ring:
      if (is_reduce_scatter)
        return full + rounds * (n - 1) * step + size * (n - 1) * (costs.ring_byte_ns + 2 * gamma);
      return full + 2 * rounds * (n - 1) * step +
             size * 2 * (n - 1) / n * (costs.ring_byte_ns + gamma);
    case algorithm::two_levels:
      if (operation != choice_of::all_reduce) {
        const double near_bytes = operation == choice_of::all_gather ? n
                                  : is_reduce_scatter                ? 2 * n
                                                                     : 2;
        return 2 * rounds * full + size * ((groups - 1) * costs.byte_ns +
                                           near_bytes * costs.near_byte_ns + (n + groups) * gamma);
      }
      return 3 * rounds * full + size * ((groups - 1) / near * costs.byte_ns +
                                         2 * costs.near_byte_ns + (1 + groups / near) * gamma);
    case algorithm::automatic: break;
  }
  return std::numeric_limits<double>::infinity();
}

/// The algorithms by which each rank gets the operands of all ranks.
inline constexpr std::array gathering_algorithms{algorithm::one_shot, algorithm::doubling};
/// The algorithms by which each rank reduces a part of the elements.
inline constexpr std::array dividing_algorithms{algorithm::two_shots, algorithm::ring,
                                                algorithm::two_levels};

/// Returns the cheapest of `candidates` for an operation, or `automatic` if none of them is
/// possible. If costs are equal, or exceed a `double`, returns the first of these algorithms.
/// `may_reorder` allows algorithms that do not keep the order of ranks.
[[nodiscard]] constexpr algorithm cheapest(std::span<const algorithm> candidates,
                                           choice_of operation, std::size_t bytes,
                                           const team_shape& shape, const access_costs& costs,
                                           bool may_reorder) noexcept {
  algorithm best = algorithm::automatic;
  double least = std::numeric_limits<double>::infinity();
  for (const algorithm by : candidates) {
    if (!may_reorder && !keeps_rank_order(by)) continue;
    if (!is_possible(by, operation, shape) || slice_of(by, operation, shape) == 0) continue;
    const double cost = cost_us(by, operation, bytes, shape, costs);
    // Costs beyond what a `double` holds are infinite, or no number where there are no bytes.
    if (best != algorithm::automatic && !(cost < least)) continue;
    least = cost;
    best = by;
  }
  return best;
}

/// The former name of `page_access`.
using page_road [[deprecated("use page_access")]] = page_access;
/// The former name of `access_costs`.
using road_costs [[deprecated("use access_costs")]] = access_costs;

}  // namespace peerbus::collective
