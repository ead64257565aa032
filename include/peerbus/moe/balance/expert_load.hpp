// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/balance/load.hpp>
#include <peerbus/moe/expert_map.hpp>

namespace peerbus::moe {

/// The rows that the experts of a layer received in the latest steps. The caller adds each step,
/// with the rows of `exchange::count_rows`, because an exchange does not count for it. From the
/// rows a planner learns which experts need replicas.
///
/// Cost: 4 x window x (physical experts + logical experts) bytes, which only the constructor
/// allocates.
/// Threads: one thread at a time.
class expert_load {
 public:
  /// Makes an object without steps, for the experts of `map`. `window` is the largest number of
  /// steps that count, at least 1.
  /// Throws: `error` invalid_argument if `window` is 0.
  expert_load(const expert_map& map, std::size_t window);

  /// Adds a step: the rows of each physical expert, [physical experts]. If the window is full, its
  /// oldest step is left out.
  /// Throws: `error` invalid_argument unless `rows` has an entry for each physical expert.
  /// Cost: reads and writes a few numbers for each expert.
  void add(std::span<const std::uint32_t> rows);
  /// Continues with the experts of `map`, after `exchange::install_experts` or `resume`. The rows
  /// of logical experts still count. The rows of physical experts and of ranks start again from 0,
  /// because they belong to the former map.
  /// Throws: `error` invalid_argument if `map` has other numbers of experts, physical experts or
  /// ranks.
  void move_to(const expert_map& map);

  /// Checks that a plan for `map` may be made from these rows.
  /// Throws: `error` invalid_argument, with the first difference, unless `map` has the experts and
  /// the living ranks with which this object counts now.
  void require_counted_with(const expert_map& map) const;

  /// Returns the number of steps in the window, up to its size.
  [[nodiscard]] std::size_t steps() const noexcept { return steps_; }
  /// Returns the rows of each logical expert in the window: [experts].
  [[nodiscard]] std::span<const std::uint64_t> rows_of_experts() const noexcept {
    return logical_.sums;
  }
  /// Returns the rows of each physical expert in the steps of the window since the last `move_to`:
  /// [physical experts].
  [[nodiscard]] std::span<const std::uint64_t> rows_of_physical_experts() const noexcept {
    return physical_.sums;
  }
  /// Returns the rows of each rank in the steps of the window since the last `move_to`: [ranks].
  [[nodiscard]] std::vector<std::uint64_t> rows_of_ranks() const;
  /// Returns the balancedness of `rows_of_ranks()` over the ranks that hold experts and are not
  /// gone.
  [[nodiscard]] double balancedness() const;

 private:
  /// Checks the numbers of experts, physical experts and ranks of `map`.
  /// Throws: `error` invalid_argument if one of them is not that of this object.
  void require_size(const expert_map& map) const;
  [[nodiscard]] static bool counts(const expert_map& map, rank_id rank) noexcept {
    return map.count(rank) != 0 && !map.is_gone(rank);
  }

  /// The steps of a window, and their sums.
  struct series {
    series(std::size_t size, std::size_t window) : steps(size * window), sums(size) {}

    /// Replaces step `index` of the window by the rows that `add_rows(step)` adds to zeros.
    template <class Add>
    void replace(std::size_t index, Add&& add_rows);

    std::vector<std::uint32_t> steps;  ///< [window, size]
    std::vector<std::uint64_t> sums;   ///< [size]
  };

  std::size_t window_;
  std::size_t steps_ = 0;
  std::size_t next_ = 0;                  ///< the place of the next step in the window
  std::vector<std::uint32_t> expert_of_;  ///< the logical expert of each physical one
  std::vector<std::uint32_t> holder_of_;  ///< the rank of each physical expert
  std::vector<bool> counts_;              ///< ranks that hold experts and are not gone
  series physical_;
  series logical_;
};

}  // namespace peerbus::moe

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/balance/expert_load.ipp>  // IWYU pragma: keep
#endif
