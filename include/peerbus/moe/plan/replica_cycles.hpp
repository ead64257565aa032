// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/expert_map.hpp>
#include <peerbus/moe/replica_choice.hpp>

namespace peerbus::moe {

/// The choice of one rank among the replicas of each expert. For each logical expert there is a
/// cycle of physical experts, through which the tokens of a batch go: entry (token + rank + expert)
/// % entries. The policies differ in their cycles only.
class replica_cycles {
 public:
  /// The largest number of entries of a cycle of quotas.
  static constexpr std::uint32_t most_turns = 256;

  /// Makes the cycles of `rank` from `wanted`, which has been checked and has `distances`. Replicas
  /// whose ranks are gone are left out, unless all are.
  replica_cycles(const expert_map& map, const replica_choice& wanted, rank_id rank);

  /// Returns the same cycles where physical expert p is called `names[p]`: [physical experts].
  /// Cost: allocates.
  [[nodiscard]] replica_cycles renamed(std::span<const std::uint32_t> names) const;

  /// Returns whether any expert has a cycle of more than one entry.
  [[nodiscard]] bool take_turns() const noexcept { return take_turns_; }
  /// Returns the first entry of the cycle of `expert`.
  [[nodiscard]] std::uint32_t first(std::size_t expert) const noexcept { return first_[expert]; }
  /// Returns the physical expert for token `token` of a batch.
  [[nodiscard]] std::uint32_t of(std::size_t expert, std::size_t token) const noexcept {
    const cycle& turns = cycles_[expert];
    return entries_[turns.begin + turns.position(static_cast<std::uint32_t>(token))];
  }

 private:
  __extension__ using wide = unsigned __int128;

  struct cycle {
    std::uint64_t inverse = 0;  ///< 2^64 / size, rounded up; 0 if the size is 1
    std::uint32_t begin = 0;
    std::uint32_t size = 1;

    /// Returns `turn` % `size` without a division: Lemire, Kaser, Kurz, "Faster remainder by direct
    /// computation", 2019.
    [[nodiscard]] std::uint32_t position(std::uint32_t turn) const noexcept {
      return static_cast<std::uint32_t>(static_cast<wide>(inverse * turn) * size >> 64U);
    }
  };

  void add(const expert_map& map, const replica_choice& wanted, std::size_t expert);
  void add_by_quotas(std::span<const std::uint32_t> replicas,
                     std::span<const std::uint32_t> quotas);

  bool take_turns_ = false;
  std::vector<cycle> cycles_;         ///< [experts]
  std::vector<std::uint32_t> first_;  ///< [experts]
  /// The cycles, one after the other, each turned so that token 0 has its first entry.
  std::vector<std::uint32_t> entries_;
};

}  // namespace peerbus::moe

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/plan/replica_cycles.ipp>  // IWYU pragma: keep
#endif
