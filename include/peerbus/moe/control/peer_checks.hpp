// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <peerbus/core/compiled.hpp>
#include <peerbus/core/function_ref.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/plan/count_table.hpp>
#include <peerbus/moe/plan/expert_router.hpp>
#include <peerbus/moe/plan/recv_plan.hpp>
#include <peerbus/moe/plan/refusal.hpp>
#include <peerbus/moe/set_view.hpp>

namespace peerbus::moe::detail {

/// The numbers that peers have written about one batch and that become indices, counts or offsets,
/// for an exchange whose ranks distrust their peers. Each number is copied out of the window, where
/// a peer may change it at any time, and the copy is checked. Only the copies are used. Only the
/// constructor allocates.
class peer_checks {
 public:
  /// Allocates for all ranks and for all rows that can arrive at `rank`.
  peer_checks(const exchange_config& config, const block_geometry& geometry,
              std::shared_ptr<const expert_router> router, rank_id rank, std::size_t rank_count);

  /// Accepts rows that ranks hand on: their tokens may be of any of `home_ranks` ranks with up to
  /// `tokens` tokens each, instead of only the rank that sends them.
  void accept_relayed(std::size_t home_ranks, std::size_t tokens) noexcept {
    home_ranks_ = home_ranks;
    tokens_ = tokens;
  }

  /// A function that returns whether a rank has sent counts. Without counts, a rank has no rows.
  using sender_test = peerbus::detail::function_ref<bool(rank_id)>;

  /// Copies the counts of all ranks and checks them. `own` has the counts of this rank for all
  /// blocks. No rank may send more than `bound` tokens.
  /// Returns: the first wrong count, if any.
  [[nodiscard]] refusal take_counts(const count_table& shown, std::span<const std::uint32_t> own,
                                    sender_test has_sent, std::size_t bound) noexcept;
  /// Returns the counts of the last `take_counts`.
  [[nodiscard]] count_table counts() const noexcept {
    return {counts_.data(), stride_, count_bytes_, first_block_};
  }

  /// Copies the origins of the rows that arrived, and in layouts by rank their expert ids, and
  /// checks them. `set` is the set of the batch at this rank.
  /// Returns: the first wrong number, if any.
  [[nodiscard]] refusal take_rows(const recv_plan& arriving, const set_view& set) noexcept;
  /// Returns the origins of the last `take_rows`, from row 0.
  [[nodiscard]] const wire_origin* origins() const noexcept { return origins_.get(); }
  /// Returns the local expert ids of the slots: [rows][top_k], from row 0. Null unless by rank.
  [[nodiscard]] std::int32_t* experts() const noexcept { return experts_.get(); }

 private:
  template <class Count>
  void copy_counts(const count_table& shown, std::span<const std::uint32_t> own,
                   sender_test has_sent) noexcept;
  template <class Count>
  [[nodiscard]] refusal check_counts(rank_id source, std::size_t bound) const noexcept;
  [[nodiscard]] refusal check_origins(rank_id source, std::uint32_t begin,
                                      std::uint32_t end) const noexcept;
  [[nodiscard]] refusal check_experts(rank_id source, std::uint32_t begin,
                                      std::uint32_t end) noexcept;

  block_geometry geometry_;
  std::shared_ptr<const expert_router> router_;
  rank_id rank_;
  std::size_t ranks_;
  std::size_t top_k_;
  std::size_t home_ranks_ = 0;  ///< ranks whose tokens rows may be; 0: only the sender
  std::size_t tokens_;          ///< the most tokens of a home rank
  std::size_t count_bytes_;
  std::size_t first_block_;  ///< block of the first count that a rank sends
  std::size_t stride_;
  std::vector<std::byte> counts_;            ///< [ranks][blocks]
  std::unique_ptr<wire_origin[]> origins_;   ///< [row capacity]
  std::unique_ptr<std::int32_t[]> experts_;  ///< [row capacity][top_k]; null unless by rank
  std::vector<std::uint32_t> seen_;          ///< 1 + the last row of each local expert
};

}  // namespace peerbus::moe::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/control/peer_checks.ipp>  // IWYU pragma: keep
#endif
