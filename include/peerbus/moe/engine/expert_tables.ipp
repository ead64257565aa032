// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <numeric>
#include <string>

#include <peerbus/core/fnv_hash.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/engine/expert_tables.hpp>

namespace peerbus::moe::detail {

PEERBUS_INLINE std::vector<std::uint32_t> experts_of_each(const expert_placement& places,
                                                          std::size_t rank_count) {
  std::vector<std::uint32_t> counts;
  counts.reserve(rank_count);
  for (const rank_id rank : all_ranks{rank_count})
    counts.push_back(static_cast<std::uint32_t>(places.count(rank)));
  return counts;
}

PEERBUS_INLINE expert_tables::expert_tables(const exchange_config& config, std::size_t rank_count)
    : experts_of_rank{experts_of_each(placement_of(config, rank_count), rank_count)},
      physical_to_logical{config.physical_to_logical.begin(), config.physical_to_logical.end()} {
  if (!physical_to_logical.empty()) return;
  physical_to_logical.resize(config.experts);
  std::iota(physical_to_logical.begin(), physical_to_logical.end(), 0U);
}

inline std::uint64_t hash_of_table(std::span<const std::uint32_t> table) noexcept {
  peerbus::detail::fnv_hash hash;
  for (const std::uint32_t entry : table) hash.add(entry);
  return hash.value();
}

PEERBUS_INLINE void expert_tables::declare(std::vector<declared>& values) const {
  values.push_back({"physical experts", physical_to_logical.size()});
  values.push_back({"hash of experts_of_rank", hash_of_table(experts_of_rank)});
  values.push_back({"hash of physical_to_logical", hash_of_table(physical_to_logical)});
}

/// Returns whether all ranks agree on `value`. Collective.
inline bool all_agree(rank_group& group, std::string_view doing, const declared& value,
                      deadline until) {
  try {
    group.agree(doing, std::span{&value, 1}, until);
    return true;
  } catch (const agreed_error& problem) {
    if (problem.code() != errc::mismatch) throw;
    return false;
  }
}

/// Throws the mismatch of the first entry of `table` that differs between ranks, if one does.
/// Collective.
inline void require_equal(rank_group& group, std::string_view doing, std::string_view name,
                          std::span<const std::uint32_t> table, deadline until) {
  const auto equal = [&](std::size_t begin, std::size_t end) {
    return all_agree(group, doing, {name, hash_of_table(table.subspan(begin, end - begin))}, until);
  };
  if (equal(0, table.size())) return;
  std::size_t begin = 0;
  for (std::size_t end = table.size(); end - begin > 1;) {
    const std::size_t middle = begin + (end - begin) / 2;
    (equal(begin, middle) ? begin : end) = middle;
  }
  const std::string entry = peerbus::detail::concat(name, "[", begin, "]");
  const declared value{entry, std::uint64_t{table[begin]}};
  group.agree(doing, std::span{&value, 1}, until);
}

PEERBUS_INLINE void agree_with_tables(rank_group& group, std::string_view doing,
                                      std::span<const declared> values, const expert_tables& tables,
                                      deadline until, const std::optional<error>& objection) {
  try {
    group.agree(doing, values, until, objection);
  } catch (const agreed_error& problem) {
    if (problem.code() != errc::mismatch ||
        !all_agree(group, doing, {"physical experts", tables.physical_to_logical.size()}, until))
      throw;
    require_equal(group, doing, "experts_of_rank", tables.experts_of_rank, until);
    require_equal(group, doing, "physical_to_logical", tables.physical_to_logical, until);
    throw;
  }
}

}  // namespace peerbus::moe::detail
