// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <peerbus/communicator/near_groups.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/plan/objection.hpp>

namespace peerbus::moe::detail {

// The rank of a group whose place is below the number of columns represents the group in its
// column: it hands on the rows of all ranks of the column.
using peerbus::detail::near_groups;

/// The configurations of the two levels of an exchange, for one column and one group.
struct level_configs {
  exchange_config far;   ///< the level between groups; its experts are numbered places at the ranks
                         ///< of the column, some of them without an expert
  exchange_config near;  ///< the level within a group
};

/// The numbers in which the levels of an exchange differ from rank to rank.
struct level_sizes {
  std::size_t column;       ///< number of ranks of the column
  std::size_t most_held;    ///< physical experts of the group that holds the most
  std::size_t near_copies;  ///< result of `copies_in_group`
};

/// The physical experts of a group of near ranks.
struct group_experts {
  std::vector<std::uint32_t> held;     ///< the numbers of the experts, in the order of the ranks
  std::vector<std::uint32_t> of_rank;  ///< the number of experts at each rank; empty if all ranks
                                       ///< have equally many
};

/// Returns the physical experts of each group.
std::vector<group_experts> experts_of_groups(const expert_placement& places,
                                             const near_groups& groups);

/// Returns the largest number of copies that a token has within a group. `by_rank` is true for
/// layouts by rank.
std::size_t copies_in_group(const near_groups& groups, std::size_t top_k, bool by_rank) noexcept;

/// Returns the configurations of the levels, for the group that holds `own`. `own` must outlive
/// them.
level_configs configs_of_levels(const exchange_config& config, const near_groups& groups,
                                const group_experts& own, const level_sizes& sizes) noexcept;

/// Returns the bytes that the note of one rank takes in the note that is handed on: its size, and
/// the note. 0 if there are no notes.
constexpr std::size_t handed_note_bytes(const exchange_config& config) noexcept {
  return config.note_bytes == 0
             ? 0
             : sizeof(std::uint64_t) + align_up(config.note_bytes, memory_map::note_alignment);
}

/// The largest number of ranks of a group whose output attachments can go home through one rank.
/// That rank sends a word to the home rank, with one bit for each rank that sent attachments.
inline constexpr std::size_t most_attaching_ranks = 64;

/// Returns the reason why an exchange with `config` cannot use two levels, or an empty string if it
/// can. `config` has been agreed on. `layout` and `far_layout` are those of the levels.
std::string obstacle_to_relay(const exchange_config& config, const near_groups& groups,
                              const codec_facts& codec, const layout_facts& layout,
                              const layout_facts& far_layout);

}  // namespace peerbus::moe::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/plan/level_configs.ipp>  // IWYU pragma: keep
#endif
