// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

#include <peerbus/codec/concept.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/departures.hpp>
#include <peerbus/moe/lane.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/road/batch_input.hpp>
#include <peerbus/moe/road/concept.hpp>
#include <peerbus/moe/road/rank_sets.hpp>
#include <peerbus/moe/road/sum_copies.hpp>
#include <peerbus/moe/road/token_order.hpp>
#include <peerbus/moe/set_view.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/window.hpp>

namespace peerbus::moe {

/// The road where peers' memory loads and stores: each byte is written once, by its sender, where
/// the expert reads it, and the home rank sums outputs where the experts wrote them.
template <token_codec Codec>
class direct_road {
 public:
  static constexpr road_memory needs{.stages = false, .outputs_may_be_home = true};
  using batch_order = no_order;

  template <direct_transport Transport>
  direct_road(const communicator<Transport>& comm, window<Transport>& window, const memory_map& map,
              Codec codec)
      : direct_road{comm.rank(), comm.size(), map, codec,
                    [&](rank_id peer) { return window.peer(peer).data(); }} {}

  /// For a road that serves ranks where `part_of` is nullptr in another way: copies for them are
  /// left out. `sum` is only for roads that serve all.
  template <class PartOf>
  direct_road(rank_id mine, std::size_t ranks, const memory_map& map, Codec codec, PartOf&& part_of)
      : map_{&map},
        codec_{codec},
        mine_{mine},
        ranks_{ranks},
        sets_{map, ranks, std::forward<PartOf>(part_of)} {}

  /// Empty for ranks that are served in another way.
  [[nodiscard]] std::span<const set_view> sets(std::size_t set) const noexcept {
    return sets_.of(set);
  }

  template <class Meet>
  [[nodiscard]] errc send(const road_batch<token_of<Codec>, batch_order>& batch, lane as,
                          Meet&& /*meet*/) const noexcept {
    write(batch.input, batch.leaving, sets(batch.set), as);
    return errc::ok;
  }

  /// Nothing: the home ranks read outputs where they are, and attachments are there already.
  template <class Meet>
  [[nodiscard]] errc publish(const road_batch<token_of<Codec>, batch_order>& /*batch*/, lane /*as*/,
                             Meet&& /*meet*/) const noexcept {
    return errc::ok;
  }
  [[nodiscard]] errc settle() const noexcept { return errc::ok; }

  [[nodiscard]] errc sum(const road_batch<token_of<Codec>, batch_order>& batch,
                         const combine_sum& wanted, lane as) const noexcept {
    const departures& leaving = batch.leaving;
    const auto at = sets(batch.set);
    if (map_->outputs_home) {
      const set_view home = at[mine_.index()];
      sum_copies(leaving, map_->hidden, wanted, as,
                 [&](std::size_t t, std::size_t slot) noexcept { return home.home_slot(t, slot); });
      return errc::ok;
    }
    sum_copies(leaving, map_->hidden, wanted, as, [&](std::size_t t, std::size_t slot) noexcept {
      const row_place place = leaving.places(t)[slot];
      return at[place.rank].output(place.row);
    });
    return errc::ok;
  }

  /// Writes every copy of this lane's share of the tokens to its place in `sets`, [ranks].
  void write(const batch_input<token_of<Codec>>& input, const departures& leaving,
             std::span<const set_view> sets, lane as) const noexcept {
    const token_order order{leaving.tokens(), as, mine_, ranks_};
    for (std::size_t i = 0; i < order.size(); ++i) {
      const std::size_t t = order[i];
      const auto token = input.tokens.subspan(t * map_->hidden, map_->hidden);
      if (i + 1 < order.size()) prefetch(input.tokens.data() + order[i + 1] * map_->hidden);
      std::byte* rows[max_top_k];
      std::byte* scales[max_top_k];
      std::size_t copies = 0;
      const auto places = leaving.places(t);
      for (std::size_t slot = 0; slot < places.size(); ++slot) {
        const row_place& place = places[slot];
        if (!place.sent()) continue;
        const set_view& to = sets[place.rank];
        if (!to) continue;
        rows[copies] = to.row(place.row);
        scales[copies++] = to.scales(place.row);
        *to.origin(place.row) = {static_cast<std::uint32_t>(t),
                                 static_cast<std::uint16_t>(mine_.index()),
                                 static_cast<std::uint16_t>(slot)};
        if (map_->slot_bytes != 0)
          leaving.describe(t, rank_id{place.rank}, to.experts(place.row), to.weights(place.row));
        for (std::size_t a = 0; a < max_attachments; ++a)
          if (const std::size_t bytes = map_->attachment_bytes[a]; bytes != 0)
            std::memcpy(to.attachment(a, place.row), input.attached[a].data() + t * bytes, bytes);
      }
      encode(token, {rows, copies}, {scales, copies});
    }
  }

 private:
  /// Encodes once, however many copies leave.
  void encode(std::span<const token_of<Codec>> token, std::span<std::byte* const> rows,
              std::span<std::byte* const> scales) const noexcept {
    if (rows.empty()) return;
    if constexpr (verbatim_codec<Codec>) {
      for (std::byte* const row : rows) std::memcpy(row, token.data(), token.size_bytes());
    } else if constexpr (multicast_codec<Codec>) {
      codec_.encode_copies(token, rows, scales);
    } else {
      // Straight into the first place; the others from there, while it is in this core's cache.
      const std::size_t row_bytes = map_->format.row_bytes;
      const std::size_t scale_bytes = map_->format.scale_bytes;
      codec_.encode(token, {rows[0], row_bytes}, {scales[0], scale_bytes});
      for (std::size_t copy = 1; copy < rows.size(); ++copy) {
        std::memcpy(rows[copy], rows[0], row_bytes);
        std::memcpy(scales[copy], scales[0], scale_bytes);
      }
    }
  }

  /// The next token comes in while the stores of this one wait for their cache lines.
  void prefetch(const token_of<Codec>* token) const noexcept {
    const auto* const bytes = reinterpret_cast<const char*>(token);
    for (std::size_t at = 0; at < map_->hidden * sizeof(*token); at += cache_line_bytes)
      __builtin_prefetch(bytes + at, 0, 2);
  }

  const memory_map* map_;
  [[no_unique_address]] Codec codec_;
  rank_id mine_;
  std::size_t ranks_;
  rank_sets sets_;
};

}  // namespace peerbus::moe
