// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/detail/objection.hpp>
#include <peerbus/moe/expert_map.hpp>
#include <peerbus/moe/memory_map.hpp>

namespace peerbus::moe::detail {

/// All ranks by group of near ranks, the same on all ranks. Groups are in the order of their lowest
/// ranks, and ranks of a group in ascending order. The place of a rank is its index in its group.
///
/// There are as many columns as the smallest group has ranks. The column of a rank is its place
/// modulo the number of columns. The rank of a group whose place is below that number represents
/// the group in its column: it hands on the rows of all ranks of the column.
struct group_grid {
  std::vector<std::vector<rank_id>> groups;  ///< the ranks of each group
  std::size_t own_group = 0;                 ///< of the caller
  std::size_t own_place = 0;                 ///< of the caller

  /// Returns the ranks of each group if all have as many, else 0.
  [[nodiscard]] std::size_t ranks_per_group() const noexcept;
  /// Returns the ranks of the caller's group.
  [[nodiscard]] const std::vector<rank_id>& near() const noexcept { return groups[own_group]; }
  /// Returns the number of columns: the ranks of the smallest group.
  [[nodiscard]] std::size_t columns() const noexcept;
  /// Returns the ranks of a column, by group and then by place.
  [[nodiscard]] std::vector<rank_id> column(std::size_t number) const;
  /// Returns the ranks of the largest column.
  [[nodiscard]] std::size_t largest_column() const noexcept;
  /// Returns the group of each rank: [ranks].
  [[nodiscard]] std::vector<std::uint32_t> group_of_each() const;
};

/// The configurations of the two levels of an exchange, for one column and one group.
struct level_configs {
  exchange_config far;   ///< of the level between groups, without `physical_to_logical`
  exchange_config near;  ///< of the level within a group
};

/// Returns the configurations of the levels. `largest_group` and `own_group` are the experts of the
/// group that holds the most, and of the group in question; `column` are the ranks of its column.
level_configs configs_of_levels(const exchange_config& config, const group_grid& grid,
                                std::size_t column, std::size_t largest_group,
                                std::size_t own_group) noexcept;

/// Returns the bytes that the note of one rank takes in the note that is handed on: its size, and
/// the note. 0 if there are no notes.
constexpr std::size_t handed_note_bytes(const exchange_config& config) noexcept {
  return config.note_bytes == 0
             ? 0
             : sizeof(std::uint64_t) + align_up(config.note_bytes, memory_map::note_alignment);
}

/// Finds the groups. Collective. `leader` is the lowest rank that is near the caller, itself
/// included. Cost: one allgather.
/// Throws, on all ranks: `error` as `gather_or_refuse`.
group_grid find_groups(rank_group& group, bootstrap& boot, rank_id leader, deadline until);

/// Returns the logical experts of a group, in the order of its ranks.
std::vector<std::uint32_t> experts_of(const expert_map& experts, std::span<const rank_id> group);

/// Returns why an exchange with `config` cannot use two levels, or an empty string if it can.
/// `config` has been agreed on. `layout` and `far_layout` are those of the levels.
std::string obstacle_to_relay(const exchange_config& config, const group_grid& grid,
                              const codec_facts& codec, const layout_facts& layout,
                              const layout_facts& far_layout);

}  // namespace peerbus::moe::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/detail/group_grid.ipp>  // IWYU pragma: keep
#endif
