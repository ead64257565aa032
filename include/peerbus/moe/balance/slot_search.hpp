// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <peerbus/core/compiled.hpp>

namespace peerbus::moe::detail {

/// Returns the first slot of each of `rank_count` ranks with equally many slots, then the end.
[[nodiscard]] std::vector<std::uint32_t> equal_begins(std::size_t slots, std::size_t rank_count);

/// Returns loads as integers with a sum of at most 2^30, in proportion to `loads`: [experts]. Plans
/// are made of integers, because compilers may round sums of products differently on machines that
/// multiply and add in one instruction.
[[nodiscard]] std::vector<std::uint32_t> scaled_loads(std::span<const double> loads);

/// A map in which no rank holds an expert twice, and a search for steps that lighten its hottest
/// rank. A step exchanges the experts of two slots on different ranks, or gives a slot to an expert
/// of the hottest rank. That slot is vacant, or its expert has other slots. Each step lowers the
/// sum of the squares of rank loads and leaves no changed rank as hot as the hottest was, so that a
/// search ends.
class slot_search {
 public:
  /// Begins with `physical_to_logical`: [slots], each an expert, or `scaled.size()` for a vacant
  /// slot. `scaled` is from `scaled_loads`. Rank r has the slots from `begins[r]` to
  /// `begins[r + 1]`, at least one. The first `fixed_slots` of each rank keep their experts.
  slot_search(std::span<const std::uint32_t> scaled, std::vector<std::uint32_t> physical_to_logical,
              std::vector<std::uint32_t> begins, std::size_t fixed_slots = 0);

  /// Takes the step that gains most per move. Returns false if there is none, or if each would make
  /// `moves()` larger than `most_moves`.
  bool take_step(std::size_t most_moves);

  /// Gives vacant slots back to their experts in `before`, [slots], unless a rank would become as
  /// hot as the hottest. No expert moves.
  void bring_back(std::span<const std::uint32_t> before);

  /// Returns the number of experts that came to a rank that did not hold them at the beginning.
  [[nodiscard]] std::size_t moves() const noexcept { return moves_; }
  /// Returns the mean rank load divided by the largest, or 1 if there is no load.
  [[nodiscard]] double balancedness() const noexcept;
  /// Returns the expert of each slot: [slots].
  [[nodiscard]] const std::vector<std::uint32_t>& physical_to_logical() const noexcept {
    return experts_;
  }
  /// Returns whether `rank` holds `expert`.
  [[nodiscard]] bool holds(std::size_t rank, std::size_t expert) const noexcept {
    return (held_[rank * loads_.size() + expert] & is_held) != 0;
  }

 private:
  /// A step: an expert of slot `hot` goes to slot `other`, whose own goes to `hot` if `exchanges`.
  struct step {
    std::int64_t change = 0;  ///< change of the sum of squares
    int moves = 1;
    std::uint32_t hot = 0;
    std::uint32_t other = 0;
    bool exchanges = false;
  };
  static constexpr std::uint8_t is_held = 1;
  static constexpr std::uint8_t was_held = 2;

  /// A slot that can be given to another expert, because its own has others or it is vacant.
  struct spare {
    std::uint32_t slot;
    std::uint32_t others;  ///< slots that its expert keeps
    std::int64_t load;     ///< load of its rank
    std::int64_t share;    ///< load of one slot of its expert
    std::int64_t more;     ///< growth of the shares of the other slots
    std::int64_t change;   ///< change of the sum of squares over the ranks of the other slots
  };

  void look_for_spares();
  void look_for_exchange(std::uint32_t hot, std::int64_t budget, step& best) const;
  void look_for_copy(std::uint32_t hot, std::int64_t budget, step& best) const;
  [[nodiscard]] bool completes_copy(const spare& from, std::int64_t less, step& candidate) const;
  void set_expert(std::uint32_t slot, std::uint32_t expert);
  void set_share(std::uint32_t expert, std::uint32_t share);
  [[nodiscard]] std::size_t hottest() const noexcept;
  [[nodiscard]] int moves_of(std::size_t rank, std::uint32_t arrives,
                             std::uint32_t leaves) const noexcept;
  static bool can_beat(std::int64_t change, const step& best) noexcept;
  static bool is_better(const step& a, const step& b) noexcept;
  [[nodiscard]] std::uint32_t share_of(std::uint32_t expert, std::uint32_t count) const noexcept {
    return count == 0 ? 0 : loads_[expert] / count;
  }

  // A vacant slot has an expert of its own, the last one, which has no load. Many slots of a rank
  // may have it, and it need not have any.
  std::vector<std::uint32_t> loads_;     ///< load of each expert
  std::uint32_t nobody_;                 ///< the expert of vacant slots
  std::vector<std::uint32_t> experts_;   ///< expert of each slot
  std::vector<std::uint32_t> ranks_;     ///< rank of each slot; saves a division
  std::vector<std::uint32_t> counts_;    ///< slots of each expert
  std::vector<std::uint32_t> shares_;    ///< load of one slot of each expert
  std::vector<std::uint32_t> first_;     ///< slot of each expert, the head of a list
  std::vector<std::uint32_t> next_;      ///< slot of the same expert, or no_slot
  std::vector<std::uint32_t> begins_;    ///< first slot of each rank, then the end
  std::vector<std::int64_t> rank_load_;  ///< load of each rank
  std::vector<std::uint8_t> held_;       ///< [ranks, experts]
  std::vector<spare> spares_;            ///< the slots that are not fixed and can be given away
  std::size_t fixed_slots_;
  std::size_t moves_ = 0;
};

}  // namespace peerbus::moe::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/balance/slot_search.ipp>  // IWYU pragma: keep
#endif
