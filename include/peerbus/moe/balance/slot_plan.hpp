// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <peerbus/core/compiled.hpp>

namespace peerbus::moe {

/// A plan for one layer: the expert of each slot, and the slots of each expert. EPLB calls these
/// tables physical_to_logical_map and logical_to_physical_map, and the numbers of slots
/// expert_count. Rank r has the slots from r x slots per rank on, or its slots in the `expert_map`
/// for which the plan was made.
class slot_plan {
 public:
  /// Makes the plan of `physical_to_logical`: [slots], each entry below `expert_count` or `vacant`.
  /// An expert's replicas are in the order of their slots.
  slot_plan(std::vector<std::uint32_t> physical_to_logical, std::size_t expert_count);
  /// Makes the plan whose slot s holds replica `replica_of_slot[s]` of its expert. The replicas of
  /// an expert are numbered from 0 on without gaps.
  slot_plan(std::vector<std::uint32_t> physical_to_logical, std::size_t expert_count,
            std::span<const std::uint32_t> replica_of_slot);

  /// Returns the expert of each slot, or `vacant`: [slots].
  [[nodiscard]] std::span<const std::uint32_t> physical_to_logical() const& noexcept {
    return physical_to_logical_;
  }
  /// Returns the slots of `expert` in the order of its replicas: [replica_count(expert)].
  [[nodiscard]] std::span<const std::uint32_t> slots_of(std::size_t expert) const& noexcept {
    return std::span{slots_}.subspan(begins_[expert], replica_count(expert));
  }
  // Of a temporary plan, which they would outlive.
  std::span<const std::uint32_t> physical_to_logical() const&& = delete;
  std::span<const std::uint32_t> slots_of(std::size_t expert) const&& = delete;

  /// Returns the number of slots of `expert`.
  [[nodiscard]] std::size_t replica_count(std::size_t expert) const noexcept {
    return begins_[expert + 1] - begins_[expert];
  }
  /// Returns the number of experts.
  [[nodiscard]] std::size_t experts() const noexcept { return begins_.size() - 1; }
  /// Returns the largest number of slots that an expert has.
  [[nodiscard]] std::size_t most_replicas() const noexcept;

  /// Two plans are equal if all their tables are.
  [[nodiscard]] friend bool operator==(const slot_plan&, const slot_plan&) = default;

 private:
  std::vector<std::uint32_t> physical_to_logical_;
  std::vector<std::uint32_t> slots_;   ///< slots of all experts, one expert after another
  std::vector<std::uint32_t> begins_;  ///< [experts + 1] begin of each expert's slots, and the end
};

}  // namespace peerbus::moe

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/balance/slot_plan.ipp>  // IWYU pragma: keep
#endif
