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
#include <peerbus/moe/road/encoded_token.hpp>
#include <peerbus/moe/road/rank_sets.hpp>
#include <peerbus/moe/road/sum_copies.hpp>
#include <peerbus/moe/road/token_order.hpp>
#include <peerbus/moe/row_stream.hpp>
#include <peerbus/moe/set_view.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/window.hpp>

namespace peerbus::moe {

/// The road for transports whose peers' memory can be loaded and stored. The sender writes each
/// byte once, to the place where the expert reads it. The home rank reads outputs at the places
/// where the experts wrote them.
template <token_codec Codec>
class direct_road {
 public:
  /// No staging. Outputs lie at the expert or at home, as the configuration says.
  static constexpr road_memory needs{.stages = false, .outputs_may_be_home = true};
  /// Nothing to keep: copies are stored in the order of tokens.
  using batch_order = no_order;

  /// Makes a road that serves all ranks. Keeps a reference to `map`.
  template <direct_transport Transport>
  direct_road(const communicator<Transport>& comm, window<Transport>& window, const memory_map& map,
              Codec codec)
      : direct_road{comm.rank(), comm.size(), map, codec,
                    [&](rank_id peer) { return window.peer(peer).data(); }} {}

  /// Makes a road that serves only the ranks for which `part_of(rank)` is not nullptr. It leaves
  /// out copies for other ranks. Its `sum` must not be called, unless it serves all ranks.
  template <class PartOf>
  direct_road(rank_id own_rank, std::size_t ranks, const memory_map& map, Codec codec,
              PartOf&& part_of)
      : map_{&map},
        codec_{codec},
        own_rank_{own_rank},
        ranks_{ranks},
        sets_{map, ranks, std::forward<PartOf>(part_of)} {}

  /// Returns the sets of a batch: [ranks], empty for ranks that this road does not serve.
  [[nodiscard]] std::span<const set_view> sets(std::size_t set) const noexcept {
    return sets_.of(set);
  }

  /// Writes the rows, as `write` does. Contract as for `row_road`.
  template <class Meet>
  [[nodiscard]] errc send(const road_batch<token_of<Codec>, batch_order>& batch, lane as,
                          Meet&& /*meet*/) const noexcept {
    const handed_rows& handed = batch.input.handed_on;
    write(batch, sets(batch.set), as,
          [&](std::size_t t) noexcept { return handed ? handed.encoded(t) : encoded_token{}; });
    return errc::ok;
  }

  /// Does nothing, because `sum` reads outputs where the experts wrote them, and the experts wrote
  /// the attachments at home.
  template <class Meet>
  [[nodiscard]] errc publish(const road_batch<token_of<Codec>, batch_order>& /*batch*/, lane /*as*/,
                             Meet&& /*meet*/) const noexcept {
    return errc::ok;
  }
  /// Does nothing, as `publish` reads no memory.
  [[nodiscard]] errc settle() const noexcept { return errc::ok; }

  /// Sums this lane's share of the tokens. Contract as for `row_road`.
  [[nodiscard]] errc sum(const road_batch<token_of<Codec>, batch_order>& batch,
                         const combine_sum& wanted, lane as) const noexcept {
    const departures& leaving = batch.leaving;
    const auto batch_sets = sets(batch.set);
    if (map_->outputs_home) {
      const set_view home = batch_sets[own_rank_.index()];
      sum_copies(batch, map_->hidden, wanted, as,
                 [&](std::size_t t, std::size_t slot) noexcept { return home.home_slot(t, slot); });
      return errc::ok;
    }
    sum_copies(batch, map_->hidden, wanted, as, [&](std::size_t t, std::size_t slot) noexcept {
      const row_place place = leaving.places(t)[slot];
      return batch_sets[place.rank].output(place.row);
    });
    return errc::ok;
  }

  /// Writes every copy of this lane's share of the tokens to its place in `sets`, [ranks]. `batch`
  /// is the batch as any road sees it. `encoded(t)` is token t as encoded already, or empty.
  template <class Batch, class Encoded>
  void write(const Batch& batch, std::span<const set_view> sets, lane as,
             Encoded&& encoded) const noexcept {
    const batch_input<token_of<Codec>>& input = batch.input;
    const departures& leaving = batch.leaving;
    row_stream stream{
        {.rows = leaving.tokens() * map_->copies, .row_bytes = map_->format.row_bytes},
        batch.stream_from};
    const token_order order{leaving.tokens(), as, own_rank_, ranks_};
    for (std::size_t i = 0; i < order.size(); ++i) {
      const std::size_t t = order[i];
      const auto token = input.tokens.subspan(t * map_->hidden, map_->hidden);
      if (!input.handed_on && i + 1 < order.size())
        prefetch(input.tokens.data() + order[i + 1] * map_->hidden);
      std::byte* rows[max_top_k];
      std::byte* scales[max_top_k];
      std::size_t copies = 0;
      const auto places = leaving.places(t);
      for (std::size_t slot = 0; slot < places.size(); ++slot) {
        const row_place& place = places[slot];
        if (!place.sent()) continue;
        const set_view& receiver = sets[place.rank];
        if (!receiver) continue;
        rows[copies] = receiver.row(place.row);
        scales[copies++] = receiver.scales(place.row);
        *receiver.origin(place.row) =
            input.handed_on ? input.handed_on.origin(t, slot)
                            : wire_origin{static_cast<std::uint32_t>(t),
                                          static_cast<std::uint16_t>(own_rank_.index()),
                                          static_cast<std::uint16_t>(slot)};
        if (map_->slot_bytes != 0)
          leaving.describe(t, rank_id{place.rank}, receiver.experts(place.row),
                           receiver.weights(place.row));
        for (std::size_t a = 0; a < max_attachments; ++a)
          if (const std::size_t bytes = map_->attachment_bytes[a]; bytes != 0)
            std::memcpy(receiver.attachment(a, place.row), input.attached[a].data() + t * bytes,
                        bytes);
      }
      if (const encoded_token ready = encoded(t); ready.row != nullptr)
        copy(ready, {rows, copies}, {scales, copies}, stream);
      else
        encode(token, {rows, copies}, {scales, copies}, stream);
    }
  }

 private:
  /// Copies an encoded token to the places of all its copies.
  void copy(const encoded_token& ready, std::span<std::byte* const> rows,
            std::span<std::byte* const> scales, row_stream& stream) const noexcept {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      stream.copy(rows[i], ready.row, map_->format.row_bytes);
      std::memcpy(scales[i], ready.scales, map_->format.scale_bytes);
    }
  }

  /// Encodes a token once, into the places of all its copies.
  void encode(std::span<const token_of<Codec>> token, std::span<std::byte* const> rows,
              std::span<std::byte* const> scales, row_stream& stream) const noexcept {
    if (rows.empty()) return;
    if constexpr (verbatim_codec<Codec>) {
      const auto* const bytes = reinterpret_cast<const std::byte*>(token.data());
      for (std::byte* const row : rows) stream.copy(row, bytes, token.size_bytes());
    } else if (stream) {
      encode_streaming(token, rows, scales, stream);
    } else if constexpr (multicast_codec<Codec>) {
      codec_.encode_copies(token, rows, scales);
    } else {
      // Encodes directly into the first place, then copies that place to the others while it is in
      // the cache of this core.
      const std::size_t row_bytes = map_->format.row_bytes;
      const std::size_t scale_bytes = map_->format.scale_bytes;
      codec_.encode(token, {rows[0], row_bytes}, {scales[0], scale_bytes});
      for (std::size_t copy = 1; copy < rows.size(); ++copy) {
        std::memcpy(rows[copy], rows[0], row_bytes);
        std::memcpy(scales[copy], scales[0], scale_bytes);
      }
    }
  }

  /// Encodes a token in the cache of this core and streams it to the places of all its copies. The
  /// scales, which are short, are stored plainly.
  void encode_streaming(std::span<const token_of<Codec>> token, std::span<std::byte* const> rows,
                        std::span<std::byte* const> scales, row_stream& stream) const noexcept {
    const std::size_t row_bytes = map_->format.row_bytes;
    const std::size_t scale_bytes = map_->format.scale_bytes;
    codec_.encode(token, {stream.row(), row_bytes}, {scales[0], scale_bytes});
    for (std::size_t copy = 0; copy < rows.size(); ++copy) {
      stream.copy(rows[copy], stream.row(), row_bytes);
      if (copy > 0) std::memcpy(scales[copy], scales[0], scale_bytes);
    }
  }

  /// Prefetches the next token while the stores of the current token wait for their cache lines.
  void prefetch(const token_of<Codec>* token) const noexcept {
    const auto* const bytes = reinterpret_cast<const char*>(token);
    for (std::size_t offset = 0; offset < map_->hidden * sizeof(*token); offset += cache_line_bytes)
      __builtin_prefetch(bytes + offset, 0, 2);
  }

  const memory_map* map_;
  [[no_unique_address]] Codec codec_;
  rank_id own_rank_;
  std::size_t ranks_;
  rank_sets sets_;
};

}  // namespace peerbus::moe
