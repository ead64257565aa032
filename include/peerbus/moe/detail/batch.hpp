// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include <peerbus/codec/concept.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/arrivals.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/departures.hpp>
#include <peerbus/moe/expert_map.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/received.hpp>
#include <peerbus/moe/received_slots.hpp>
#include <peerbus/moe/received_token_slots.hpp>
#include <peerbus/moe/received_tokens.hpp>
#include <peerbus/moe/refusal.hpp>
#include <peerbus/moe/road/batch_input.hpp>
#include <peerbus/moe/road/concept.hpp>
#include <peerbus/moe/row_block.hpp>
#include <peerbus/moe/set_view.hpp>
#include <peerbus/moe/token_index.hpp>

namespace peerbus::moe::detail {

/// The progress of a batch. In `counted`, `sent` and `returning` this rank has begun an operation
/// and must still call its second half.
enum class stage : std::uint8_t {
  idle,       ///< never used
  counted,    ///< counts are posted; rows leave when they have their places
  sent,       ///< this rank's rows have left
  received,   ///< all rows for this rank have arrived
  released,   ///< not combined; its memory is given up to a later dispatch
  returning,  ///< outputs are announced
  returned    ///< combined
};

/// Returns the state of a batch in words, for error messages.
inline std::string_view describe(stage reached) noexcept {
  switch (reached) {
    case stage::idle: return "not dispatched";
    case stage::counted:
    case stage::sent: return "not received yet";
    case stage::received: return "received";
    case stage::released: return "given up to a later dispatch";
    case stage::returning: return "on its way home";
    case stage::returned: return "combined already";
  }
  return "unknown";
}

/// The part of a batch set in ordinary memory: the state of the dispatch that uses the set, and the
/// views that it returns. Only the constructor allocates. `Order` is the data that the road of the
/// exchange keeps for each batch.
template <token_codec Codec, row_layout Layout, class Order>
class batch {
 public:
  static constexpr bool by_rank = layout_by_rank<Layout>;
  static constexpr bool by_source = slot_layout<Layout> || automatic_layout<Layout>;
  using received_type = std::conditional_t<
      by_source, std::conditional_t<by_rank, received_token_slots<Codec>, received_slots<Codec>>,
      std::conditional_t<by_rank, received_tokens<Codec>, received<Codec>>>;

  batch(const exchange_config& config, const block_geometry& geometry,
        const std::shared_ptr<const expert_map>& experts, rank_id rank, std::size_t ranks)
      : leaving{config, geometry, experts, rank, ranks},
        arriving{geometry, rank, ranks},
        order{config, geometry, ranks},
        rank_{rank},
        stream_from_{config.stream_from.value_or(never_stream)} {
    const std::size_t local = leaving.placement().count(rank);
    if constexpr (by_rank) {
      starts_.resize(local + 1);
      most_uses_ = geometry.row_capacity * std::min(config.top_k, local);
      // Not initialised, so that pages are committed only as rows arrive.
      uses_ = std::make_unique_for_overwrite<row_use[]>(most_uses_);
    } else if constexpr (!by_source) {
      views_.reserve(local);
    }
  }

  departures leaving;
  arrivals arriving;
  Order order;
  batch_input<token_of<Codec>> input;
  stage reached = stage::idle;
  std::uint64_t number = 0;    ///< number of the dispatch
  std::uint64_t combines = 0;  ///< attempts to combine, over all dispatches that used the set
  refusal refused;             ///< set if the dispatch or combine under way is refused
  rank_id refused_by{0};
  bool attached = false;  ///< true if this rank sends output attachments home

  /// Starts to use the set for dispatch `new_number`.
  void begin(std::uint64_t new_number, const batch_input<token_of<Codec>>& new_input) noexcept {
    previous_ = {reached, number};
    reached = stage::counted;
    number = new_number;
    input = new_input;
    refused = {};
  }
  /// Records the refusal of a peer, if `peer_refusal` has one. Returns whether it has.
  template <class Refusal>
  [[nodiscard]] bool refuse(const std::optional<Refusal>& peer_refusal) noexcept {
    if (!peer_refusal) return false;
    refused = peer_refusal->why;
    refused_by = peer_refusal->rank;
    return true;
  }
  /// Returns the set to the previous dispatch, after a dispatch that was refused.
  void undo() noexcept {
    reached = previous_.reached;
    number = previous_.number;
  }

  /// Returns the batch as its road sees it. `set` is the number of its set.
  [[nodiscard]] road_batch<token_of<Codec>, Order> on_road(std::size_t set) noexcept {
    return {input, leaving, arriving, order, set, attached, stream_from_};
  }

  /// Returns the views of the rows that arrived. Zeroes gaps if the layout requires that. Every
  /// call has the same `memory`, and views read the arrivals, so that views are made only once.
  [[nodiscard]] received_type views(const void* exchange, Codec codec, row_memory memory) noexcept {
    const ticket own_ticket{number, exchange};
    const auto experts = leaving.placement().held_by(rank_);
    if constexpr (by_rank) {
      index_uses(memory.set);
      const token_index<Codec> index{
          own_ticket, experts, {starts_, {uses_.get(), most_uses_}}, memory.set};
      if constexpr (by_source)
        return received_token_slots<Codec>{index, codec, memory, arriving};
      else
        return received_tokens<Codec>{row_block<Codec>{codec, memory, arriving.of(0)}, index};
    } else if constexpr (by_source) {
      return received_slots<Codec>{own_ticket, codec, memory, arriving, experts};
    } else {
      for (std::size_t e = views_.size(); e < experts.size(); ++e)
        views_.emplace_back(experts[e], row_block<Codec>{codec, memory, arriving.of(e)});
      if (leaving.geometry().zero_gaps)
        for (const auto& rows : views_) zero_gap(rows, memory.set);
      return received<Codec>{own_ticket, views_, arriving.rows(), arriving.end(), memory.set};
    }
  }

 private:
  static void zero_gap(const row_block<Codec>& rows, const set_view& set) noexcept {
    const std::size_t begin = rows.first_row() + rows.count();
    const std::size_t end = rows.first_row() + rows.padded_count();
    std::fill(set.row(begin), set.row(end), std::byte{0});
    std::fill(set.scales(begin), set.scales(end), std::byte{0});
    for (std::size_t a = 0; a < max_attachments; ++a)
      std::fill(set.attachment(a, begin), set.attachment(a, end), std::byte{0});
  }

  /// Calls `visit(e, use)` for each use of a row by a local expert `e`, in the order of rows and
  /// slots. Whether a slot is used is as random as the routing. Therefore no branch depends on a
  /// slot: the used slots of several rows are first collected, then visited.
  template <class Visit>
  void for_each_use(const set_view& set, Visit&& visit) const noexcept {
    constexpr std::uint32_t rows_at_once = 16;
    const auto* const experts = reinterpret_cast<const std::int32_t*>(set.experts(0));
    const std::size_t width = set.map().slot_bytes / sizeof(std::int32_t);
    std::array<row_use, rows_at_once * max_top_k> used;
    for (const rank_id source : all_ranks{arriving.ranks()}) {
      const auto rows = arriving.from(0, source);
      for (std::uint32_t first = rows[0]; first < rows[1]; first += rows_at_once) {
        const std::uint32_t end = std::min(rows[1], first + rows_at_once);
        std::size_t count = 0;
        for (std::uint32_t row = first; row < end; ++row)
          for (std::uint32_t slot = 0; slot < width; ++slot) {
            used[count] = {row, slot};
            count += experts[row * width + slot] >= 0 ? 1U : 0U;
          }
        for (const row_use use : std::span{used}.first(count))
          visit(static_cast<std::size_t>(experts[use.row * width + use.slot]), use);
      }
    }
  }

  /// Indexes the uses of rows by local expert, by a counting sort.
  void index_uses(const set_view& set) noexcept {
    // starts_[e + 1] is first the number of uses of expert e, then the beginning of its uses, and
    // finally their end.
    std::fill(starts_.begin(), starts_.end(), 0U);
    for_each_use(set, [&](std::size_t e, row_use) { ++starts_[e + 1]; });
    std::uint32_t begin_of_uses = 0;
    for (std::size_t e = 0; e + 1 < starts_.size(); ++e) {
      const std::uint32_t use_count = starts_[e + 1];
      starts_[e + 1] = begin_of_uses;
      begin_of_uses += use_count;
    }
    for_each_use(set, [&](std::size_t e, row_use use) { uses_[starts_[e + 1]++] = use; });
  }

  struct use_of_set {
    stage reached = stage::idle;
    std::uint64_t number = 0;
  };

  rank_id rank_;
  std::size_t stream_from_;
  use_of_set previous_;
  std::vector<expert_rows<Codec>> views_;
  std::vector<std::uint32_t> starts_;
  std::unique_ptr<row_use[]> uses_;
  std::size_t most_uses_ = 0;
};

}  // namespace peerbus::moe::detail
