// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include <peerbus/codec/concept.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/control/batch.hpp>
#include <peerbus/moe/engine/use_index.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/received.hpp>
#include <peerbus/moe/received_slots.hpp>
#include <peerbus/moe/received_token_slots.hpp>
#include <peerbus/moe/received_tokens.hpp>
#include <peerbus/moe/row_block.hpp>
#include <peerbus/moe/set_view.hpp>
#include <peerbus/moe/token_index.hpp>

namespace peerbus::moe::detail {

/// The views of the rows of a batch set, which `dispatch_recv` returns. Only the constructor
/// allocates.
template <token_codec Codec, row_layout Layout>
class received_views {
  static constexpr bool by_rank = layout_by_rank<Layout>;
  static constexpr bool by_source = slot_layout<Layout> || automatic_layout<Layout>;

 public:
  /// The result of a dispatch.
  using type = std::conditional_t<
      by_source, std::conditional_t<by_rank, received_token_slots<Codec>, received_slots<Codec>>,
      std::conditional_t<by_rank, received_tokens<Codec>, received<Codec>>>;

  /// Allocates for `local_experts` experts of this rank.
  received_views(const exchange_config& config, const block_geometry& geometry,
                 std::size_t local_experts)
      : uses_{by_rank ? local_experts : 0,
              by_rank ? geometry.row_capacity * std::min(config.top_k, local_experts) : 0} {
    if constexpr (!by_rank && !by_source) experts_.reserve(local_experts);
  }

  /// Writes the number of rows of each expert of this rank, as the last `of` found them.
  void count_rows(const recv_plan& arriving, std::span<std::uint32_t> rows) const noexcept {
    for (std::size_t e = 0; e < rows.size(); ++e) {
      rows[e] = 0;
      if constexpr (by_rank) {
        const auto starts = uses_.view().starts;
        rows[e] = starts[e + 1] - starts[e];
      } else {
        for (const rank_id source : all_ranks{arriving.ranks()}) {
          const auto bounds = arriving.from(e, source);
          rows[e] += bounds[1] - bounds[0];
        }
      }
    }
  }
  /// Drops the views of experts, whose numbers have changed.
  void forget() noexcept { experts_.clear(); }

  /// Returns the view of the rows that arrived. Zeroes gaps if the layout requires that. Every call
  /// must give the same `memory`, because views of experts are made once; they read the
  /// `recv_plan`.
  [[nodiscard]] type of(const batch& batch, const void* exchange, Codec codec, row_memory memory,
                        rank_id rank) noexcept {
    const ticket own_ticket{batch.number, exchange};
    const recv_plan& arriving = batch.arriving;
    const auto experts = batch.leaving.placement().held_by(rank);
    if constexpr (by_rank) {
      std::int32_t* const slots = batch.experts(memory.set);
      uses_.index(arriving, slots, memory.set.map().slot_bytes / sizeof(std::int32_t));
      const token_index<Codec> index{own_ticket, experts, uses_.view(), slots, memory.set};
      if constexpr (by_source)
        return received_token_slots<Codec>{index, codec, memory, arriving};
      else
        return received_tokens<Codec>{row_block<Codec>{codec, memory, arriving.of(0)}, index};
    } else if constexpr (by_source) {
      return received_slots<Codec>{own_ticket, codec, memory, arriving, experts};
    } else {
      for (std::size_t e = experts_.size(); e < experts.size(); ++e)
        experts_.emplace_back(experts[e], row_block<Codec>{codec, memory, arriving.of(e)});
      if (batch.leaving.geometry().zero_gaps)
        for (const auto& rows : experts_)
          memory.set.zero(rows.first_row() + rows.count(), rows.first_row() + rows.padded_count());
      return received<Codec>{own_ticket, experts_, arriving.rows(), arriving.end(), memory.set};
    }
  }

 private:
  std::vector<expert_rows<Codec>> experts_;
  use_index uses_;  ///< empty unless the layout is by rank
};

}  // namespace peerbus::moe::detail
