// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string_view>

#include <peerbus/core/compiled.hpp>
#include <peerbus/core/cost_table.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/optional_calls.hpp>
#include <peerbus/transport/refinements.hpp>

namespace peerbus::moe {

/// Returns the name, in costs, of the path of rows over a transport with `reach`: "direct" if rows
/// are stored into the memory of all peers, "mixed" if only into that of near peers, "staged" if
/// they are put.
constexpr std::string_view path_name_of(peer_reach reach) noexcept {
  return reach == peer_reach::all ? "direct" : reach == peer_reach::near ? "mixed" : "staged";
}
/// The path name for `Transport`, by the reach that its type declares.
template <transport Transport>
inline constexpr std::string_view path_name = path_name_of(reach_by_type<Transport>);

/// The former name of `path_name`.
template <transport Transport>
[[deprecated("use path_name")]] inline constexpr std::string_view road_name = path_name<Transport>;

/// The size of a full dispatch, from which a protocol is chosen. It depends on the configuration
/// alone, because the tokens of a call differ between ranks.
struct dispatch_size {
  std::string_view path;  ///< one of the names of `path_name_of`
  std::size_t ranks;      ///< ranks of the communicator
  double rows;            ///< rows that a rank sends: max_tokens x the copies of a token
  double row_kib;         ///< KiB of a row and its scales
};

/// The times in which the two protocols of a dispatch differ, in microseconds.
struct protocol_estimate {
  double counts_us = 0;  ///< the round of counts of `counts_first`
  double slots_us = 0;   ///< separate scales and origins of `one_phase`

  /// Returns the protocol that takes less time, or `counts_first` if both take equally long.
  [[nodiscard]] constexpr dispatch_protocol cheaper() const noexcept {
    return counts_us > slots_us ? dispatch_protocol::one_phase : dispatch_protocol::counts_first;
  }
};

namespace detail {

/// The costs by which the protocols of a dispatch differ.
struct protocol_costs {
  double round_us;  ///< counts_round_us
  double rank_us;   ///< counts_rank_us
  double row_us;    ///< slot_row_us
  double kib_us;    ///< slot_kib_us
};

/// Returns the costs that the library assumes (docs/performance.md). For "direct" they were
/// measured over shared memory. For the other paths, a network message of a few microseconds is
/// assumed. There each row in slots is a separate put, but rows of neighbouring blocks often leave
/// together.
constexpr protocol_costs assumed_costs(std::string_view path) noexcept {
  if (path == "direct") return {1.4, 0.2, 0.04, 0};
  return {5.0, 0.5, 0.3, 0};
}

/// Estimates the protocols for a dispatch of `size` from `costs`.
constexpr protocol_estimate estimate_from(const protocol_costs& costs,
                                          const dispatch_size& size) noexcept {
  const double peers = size.ranks == 0 ? 0 : static_cast<double>(size.ranks - 1);
  return {costs.round_us + costs.rank_us * peers,
          size.rows * (costs.row_us + costs.kib_us * size.row_kib)};
}

}  // namespace detail

/// Estimates the protocols for a dispatch of `size`:
///
///     counts_us = counts_round_us + counts_rank_us x (ranks - 1)
///     slots_us  = rows x (slot_row_us + slot_kib_us x row_kib)
///
/// The four costs have the names `moe.<path>.counts_round_us` and so on in `costs`. A
/// cost that the table lacks has the value that docs/performance.md names. Ranks with equal tables
/// compute equal results.
protocol_estimate estimate_protocols(const cost_table& costs, const dispatch_size& size);

namespace detail {

/// Returns whether `costs` has one of the four costs for `path`.
bool has_protocol_costs(const cost_table& costs, std::string_view path);

}  // namespace detail

}  // namespace peerbus::moe

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/protocol.ipp>  // IWYU pragma: keep
#endif
