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

/// The expert tables of a configuration, which must be equal on all ranks. Ranks compare hashes. If
/// the hashes differ, ranks find and name the first entry that differs.
struct expert_tables {
  expert_tables() = default;
  /// Makes the tables of `config`, which has been checked. An empty span gives the default table.
  expert_tables(const exchange_config& config, std::size_t rank_count);

  /// Appends the number of physical experts and the hashes of both tables to `values`.
  void declare(std::vector<declared>& values) const;

  std::vector<std::uint32_t> experts_of_rank;
  std::vector<std::uint32_t> physical_to_logical;
};

/// Calls `group.agree(doing, values, until, objection)`, where `values` include those of
/// `tables.declare`. Collective.
/// Cost: as `agree`; if ranks differ, one more for each bit of the size of a table.
/// Throws, on all ranks: as `agree`; a mismatch of a table names its first entry that differs.
void agree_with_tables(rank_group& group, std::string_view doing, std::span<const declared> values,
                       const expert_tables& tables, deadline until,
                       const std::optional<error>& objection);

}  // namespace peerbus::moe::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/engine/expert_tables.ipp>  // IWYU pragma: keep
#endif
