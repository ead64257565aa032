// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/moe/config.hpp>

namespace peerbus::moe::detail {

/// Returns the number of experts of each rank: [ranks].
[[nodiscard]] std::vector<std::uint32_t> experts_of_each(const expert_placement& places,
                                                         std::size_t rank_count);

/// The tables of experts of a configuration, which are equal on all ranks. Ranks compare hashes. If
/// they differ, ranks look for the first entry that does, and name it.
struct expert_tables {
  expert_tables() = default;
  /// Makes them from a configuration that has been checked. What is left out counts as if it were
  /// given.
  expert_tables(const exchange_config& config, std::size_t rank_count);

  /// Appends the sizes and hashes.
  void declare(std::vector<declared>& values) const;

  std::vector<std::uint32_t> experts_of_rank;
  std::vector<std::uint32_t> physical_to_logical;
};

/// Does as `group.agree(doing, values, until, objection)` for `values` that `tables` are declared
/// in. Collective.
/// Cost: as `agree`; if ranks differ, one more for each bit of the size of a table.
/// Throws, on all ranks: as `agree`; a mismatch names the first entry of a table that differs.
void agree_with_tables(rank_group& group, std::string_view doing, std::span<const declared> values,
                       const expert_tables& tables, deadline until,
                       const std::optional<error>& objection);

}  // namespace peerbus::moe::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/engine/expert_tables.ipp>  // IWYU pragma: keep
#endif
