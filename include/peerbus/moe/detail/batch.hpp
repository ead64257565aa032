// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include <peerbus/codec/concept.hpp>
#include <peerbus/moe/arrivals.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/departures.hpp>
#include <peerbus/moe/expert_map.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/received.hpp>
#include <peerbus/moe/received_tokens.hpp>
#include <peerbus/moe/refusal.hpp>
#include <peerbus/moe/road/batch_input.hpp>
#include <peerbus/moe/road/concept.hpp>
#include <peerbus/moe/row_block.hpp>
#include <peerbus/moe/set_view.hpp>

namespace peerbus::moe::detail {

/// How far a batch has come. In `counted`, `sent` and `returning` this rank owes a call that takes
/// up what it began.
enum class stage : std::uint8_t {
  idle,       ///< never used
  counted,    ///< counts are posted; rows go out once all ranks have counted
  sent,       ///< this rank's rows are out
  received,   ///< all rows for this rank are in
  returning,  ///< outputs are announced
  returned    ///< combined
};

inline std::string_view describe(stage reached) noexcept {
  switch (reached) {
    case stage::idle: return "not dispatched";
    case stage::counted:
    case stage::sent: return "not received yet";
    case stage::received: return "received";
    case stage::returning: return "on its way home";
    case stage::returned: return "combined already";
  }
  return "unknown";
}

/// The local half of what a batch set holds: everything a rank knows of the dispatch that uses the
/// set, and the views that it hands out. All memory is taken at construction.
/// `Order` is what the exchange's road keeps of a batch.
template <token_codec Codec, row_layout Layout, class Order>
class batch {
 public:
  static constexpr bool by_rank = std::same_as<Layout, rank_major>;
  using received_type = std::conditional_t<by_rank, received_tokens<Codec>, received<Codec>>;

  batch(const exchange_config& config, const block_geometry& geometry,
        const std::shared_ptr<const expert_map>& experts, rank_id rank, std::size_t ranks)
      : leaving{config, geometry, experts, rank, ranks},
        arriving{geometry, rank, ranks},
        order{config, geometry, ranks},
        rank_{rank} {
    const std::size_t local = leaving.placement().count(rank);
    if constexpr (by_rank) {
      starts_.resize(local + 1);
      most_uses_ = geometry.row_capacity * std::min(config.top_k, local);
      uses_ = std::make_unique_for_overwrite<row_use[]>(most_uses_);  // Taken as rows arrive.
    } else {
      views_.reserve(local);
    }
  }

  departures leaving;
  arrivals arriving;
  Order order;
  batch_input<token_of<Codec>> input;
  stage at = stage::idle;
  std::uint64_t number = 0;    ///< of the dispatch
  std::uint64_t combines = 0;  ///< attempts, of all dispatches that used the set
  refusal refused;             ///< of the dispatch or combine under way, if it is refused
  rank_id refused_by{0};
  bool attached = false;  ///< whether this rank's output attachments go home

  /// The set is used for dispatch `n` from now on.
  void begin(std::uint64_t n, const batch_input<token_of<Codec>>& given) noexcept {
    before_ = {at, number};
    at = stage::counted;
    number = n;
    input = given;
    refused = {};
  }
  /// The dispatch did not happen: what the set held before is still there.
  void undo() noexcept {
    at = before_.at;
    number = before_.number;
  }

  /// The batch as its road sees it; `set` is the number of its set.
  [[nodiscard]] road_batch<token_of<Codec>, Order> on_road(std::size_t set) noexcept {
    return {input, leaving, arriving, order, set, attached};
  }

  /// Returns the views of what arrived; zeroes gaps if the layout wants that. `memory` is the same
  /// in each call, so that views which see the arrivals are made in the first.
  [[nodiscard]] received_type views(const void* exchange, Codec codec, row_memory memory) noexcept {
    if constexpr (by_rank) {
      const row_block<Codec> rows{codec, memory, arriving.of(0)};
      index_uses(rows, memory.set);
      return received_tokens<Codec>{ticket{number, exchange},
                                    rows,
                                    leaving.placement().held_by(rank_),
                                    {starts_, {uses_.get(), most_uses_}}};
    } else {
      const std::size_t local = leaving.placement().count(rank_);
      for (std::size_t e = views_.size(); e < local; ++e)
        views_.emplace_back(leaving.placement().held_by(rank_)[e],
                            row_block<Codec>{codec, memory, arriving.of(e)});
      if (leaving.geometry().zero_gaps)
        for (const auto& rows : views_) zero_gap(rows, memory.set);
      return received<Codec>{ticket{number, exchange}, views_, arriving.rows(), arriving.end(),
                             memory.set};
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

  /// Counting sort of the rows' slots by expert.
  void index_uses(const row_block<Codec>& rows, const set_view& set) noexcept {
    const auto* const experts = reinterpret_cast<const std::int32_t*>(set.experts(0));
    const std::size_t width = set.map().slot_bytes / sizeof(std::int32_t);
    const auto for_each_use = [&](auto&& visit) noexcept {
      for (std::uint32_t row = 0; row < rows.count(); ++row)
        for (std::uint32_t slot = 0; slot < width; ++slot)
          if (const std::int32_t e = experts[row * width + slot]; e >= 0)
            visit(static_cast<std::size_t>(e), row_use{row, slot});
    };
    // starts_[e + 1] counts the uses of e, then is where those of e begin, then where they end.
    std::fill(starts_.begin(), starts_.end(), 0U);
    for_each_use([&](std::size_t e, row_use) { ++starts_[e + 1]; });
    std::uint32_t before = 0;
    for (std::size_t e = 0; e + 1 < starts_.size(); ++e) {
      const std::uint32_t here = starts_[e + 1];
      starts_[e + 1] = before;
      before += here;
    }
    for_each_use([&](std::size_t e, row_use use) { uses_[starts_[e + 1]++] = use; });
  }

  struct use_of_set {
    stage at = stage::idle;
    std::uint64_t number = 0;
  };

  rank_id rank_;
  use_of_set before_;
  std::vector<expert_rows<Codec>> views_;
  std::vector<std::uint32_t> starts_;
  std::unique_ptr<row_use[]> uses_;
  std::size_t most_uses_ = 0;
};

}  // namespace peerbus::moe::detail
