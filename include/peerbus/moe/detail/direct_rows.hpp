// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <peerbus/codec/concept.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/detail/batch_input.hpp>
#include <peerbus/moe/detail/sum_copies.hpp>
#include <peerbus/moe/detail/token_order.hpp>
#include <peerbus/moe/lane.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/plan.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/window.hpp>

namespace peerbus::moe::detail {

/// Moves rows where peers' memory loads and stores: each byte is written once, by its sender, where
/// the expert reads it, and the home rank sums outputs where the experts wrote them.
template <direct_transport Transport, token_codec Codec>
class direct_rows {
 public:
  static constexpr road way = road::direct;

  direct_rows(const communicator<Transport>& comm, window<Transport>& memory, const memory_map& map,
              outputs_at outputs, Codec codec)
      : map_{map},
        codec_{codec},
        mine_{comm.rank()},
        at_home_{outputs == outputs_at::home},
        ranks_{comm.size()} {
    for (std::size_t set = 0; set < map.in_flight; ++set)
      for (const rank_id peer : comm.ranks())
        parts_.push_back(memory.peer(peer).data() + set * map.set_bytes);
  }

  /// The parts of all ranks, from which outputs of batch set `set` are found; empty if every rank
  /// keeps those of its own experts.
  [[nodiscard]] std::span<std::byte* const> homes(std::size_t set) const noexcept {
    return at_home_ ? parts_of(set) : std::span<std::byte* const>{};
  }

  /// Writes every copy of this lane's share of the tokens to its place. Visible at a peer after the
  /// next signal to it.
  [[nodiscard]] errc send(const batch_input<token_of<Codec>>& input, const dispatch_plan& plan,
                          std::size_t set, lane as) const noexcept {
    const auto parts = parts_of(set);
    const token_order order{plan.tokens(), as, mine_, ranks_};
    for (std::size_t i = 0; i < order.size(); ++i) {
      const std::size_t t = order[i];
      const auto token = input.tokens.subspan(t * map_.hidden, map_.hidden);
      if (i + 1 < order.size()) prefetch(input.tokens.data() + order[i + 1] * map_.hidden);
      std::byte* rows[max_top_k];
      std::byte* scales[max_top_k];
      std::size_t copies = 0;
      const auto places = plan.places(t);
      for (std::size_t slot = 0; slot < places.size(); ++slot) {
        const row_place& place = places[slot];
        if (!place.sent()) continue;
        std::byte* const part = parts[place.rank];
        rows[copies] = part + map_.rows + place.row * map_.format.row_bytes;
        scales[copies++] = part + map_.scales + place.row * map_.format.scale_bytes;
        const wire_origin origin{static_cast<std::uint32_t>(t),
                                 static_cast<std::uint16_t>(mine_.index()),
                                 static_cast<std::uint16_t>(slot)};
        std::memcpy(part + map_.origins + place.row * sizeof origin, &origin, sizeof origin);
        if (map_.slot_bytes != 0)
          plan.describe(t, rank_id{place.rank}, part + map_.experts + place.row * map_.slot_bytes,
                        part + map_.weights + place.row * map_.slot_bytes);
        for (std::size_t a = 0; a < max_attachments; ++a) {
          const std::size_t bytes = map_.attachment_bytes[a];
          if (bytes == 0) continue;
          std::memcpy(part + map_.attachments[a] + place.row * bytes,
                      input.attached[a].data() + t * bytes, bytes);
        }
      }
      encode(token, {rows, copies}, {scales, copies});
    }
    return errc::ok;
  }

  /// `sum_copies` with the outputs where they came to lie, for this lane's share of tokens.
  [[nodiscard]] errc sum(const dispatch_plan& plan, std::size_t set, const combine_sum& wanted,
                         lane as) const noexcept {
    const auto parts = parts_of(set);
    if (at_home_) {
      const std::byte* const home = parts[mine_.index()] + map_.outputs;
      sum_copies(plan, map_.hidden, wanted, as, [&](std::size_t t, std::size_t slot) noexcept {
        return reinterpret_cast<const bf16*>(home + (t * map_.copies + slot) * map_.output_bytes());
      });
      return errc::ok;
    }
    sum_copies(plan, map_.hidden, wanted, as, [&](std::size_t t, std::size_t slot) noexcept {
      const row_place place = plan.places(t)[slot];
      return reinterpret_cast<const bf16*>(parts[place.rank] + map_.outputs +
                                           place.row * map_.output_bytes());
    });
    return errc::ok;
  }

 private:
  [[nodiscard]] std::span<std::byte* const> parts_of(std::size_t set) const noexcept {
    return std::span{parts_}.subspan(set * ranks_, ranks_);
  }

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
      const std::size_t row_bytes = map_.format.row_bytes;
      const std::size_t scale_bytes = map_.format.scale_bytes;
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
    for (std::size_t at = 0; at < map_.hidden * sizeof(*token); at += cache_line_bytes)
      __builtin_prefetch(bytes + at, 0, 2);
  }

  memory_map map_;
  [[no_unique_address]] Codec codec_;
  rank_id mine_;
  bool at_home_;
  std::size_t ranks_;
  std::vector<std::byte*> parts_;  ///< [in_flight][ranks]
};

}  // namespace peerbus::moe::detail
