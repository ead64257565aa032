// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <peerbus/moe/balance.hpp>
#include <peerbus/moe/expert_map.hpp>

#include "options.hpp"

namespace moe_text {

/// Returns the expert of each place: the experts in order, and vacant places behind those of each
/// rank.
std::vector<std::uint32_t> dealt_places(const options& given);

/// The load of the ranks in the two halves of a text, between which experts change their places.
/// All ranks count the same, as the rows of all ranks are known to each.
class balancer {
 public:
  balancer(const options& given, const peerbus::moe::expert_map& map);

  /// Adds the rows of each place in one round.
  void add(std::span<const std::uint32_t> rows_of_places) { now_.add(rows_of_places); }
  /// Returns other places for the experts, in which the busiest have several.
  [[nodiscard]] std::vector<std::uint32_t> plan() const;
  /// Begins the second half, in which experts lie as `map` says.
  void begin_second_half(const peerbus::moe::expert_map& map);
  /// Prints the balancedness of both halves, and where the busiest expert is.
  void print() const;

 private:
  peerbus::moe::spread_shape shape_;
  peerbus::moe::expert_load now_;           ///< of this half
  std::optional<double> before_;            ///< balancedness of the first half
  std::size_t busiest_ = 0;                 ///< expert of the first half
  std::vector<std::uint32_t> its_ranks_{};  ///< in the second half
};

}  // namespace moe_text
