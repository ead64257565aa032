// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include <peerbus/codec/concept.hpp>
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

/// Moves rows over transports whose peers' memory can only be put to and got from: tokens are
/// encoded into the sender's own window and put from there; outputs, which stay at the expert, are
/// got into slots [token, copy] of the home rank and summed there. Same bytes as `direct_rows`.
template <transport Transport, token_codec Codec>
class staged_rows {
 public:
  static constexpr road way = road::staged;

  staged_rows(window<Transport>& memory, const memory_map& map, outputs_at, Codec codec,
              rank_id mine, std::size_t ranks)
      : memory_{&memory}, map_{map}, codec_{codec}, mine_{mine}, ranks_{ranks} {}

  /// None: there is no address to store an output at another rank.
  [[nodiscard]] std::span<std::byte* const> homes(std::size_t) const noexcept { return {}; }

  /// Puts every copy of this lane's share of the tokens to its place. Visible at a peer after the
  /// next signal to it.
  [[nodiscard]] errc send(const batch_input& input, const dispatch_plan& plan, std::size_t set,
                          lane as) noexcept {
    const std::size_t base = set * map_.set_bytes;
    const token_order order{plan.tokens(), as, mine_, ranks_};
    for (std::size_t i = 0; i < order.size(); ++i) {
      const std::size_t t = order[i];
      stage area{memory_->local().subspan(map_.staged + t * map_.staged_bytes_per_token(),
                                          map_.staged_bytes_per_token())};
      const auto row = area.take(map_.format.row_bytes);
      const auto scales = area.take(map_.format.scale_bytes);
      codec_.encode(input.tokens.subspan(t * map_.hidden, map_.hidden), row, scales);
      std::span<std::byte> attached[max_attachments];
      for (std::size_t a = 0; a < max_attachments; ++a) {
        attached[a] = area.take(map_.attachment_bytes[a]);
        if (attached[a].empty()) continue;
        std::memcpy(attached[a].data(), input.attached[a].data() + t * attached[a].size(),
                    attached[a].size());
      }
      const auto places = plan.places(t);
      for (std::size_t slot = 0; slot < places.size(); ++slot) {
        const row_place& place = places[slot];
        if (!place.sent()) continue;
        const auto origin = area.take(sizeof(wire_origin));
        const wire_origin from{static_cast<std::uint32_t>(t),
                               static_cast<std::uint16_t>(mine_.index()),
                               static_cast<std::uint16_t>(slot)};
        std::memcpy(origin.data(), &from, sizeof from);
        const auto experts = area.take(map_.slot_bytes);
        const auto weights = area.take(map_.slot_bytes);
        if (map_.slot_bytes != 0)
          plan.describe(t, rank_id{place.rank}, experts.data(), weights.data());

        const auto deliver = [&](std::size_t at, std::span<const std::byte> part) noexcept {
          return put(rank_id{place.rank}, base + at + place.row * part.size(), part);
        };
        errc code = deliver(map_.rows, row);
        if (code == errc::ok) code = deliver(map_.scales, scales);
        if (code == errc::ok) code = deliver(map_.origins, origin);
        if (code == errc::ok) code = deliver(map_.experts, experts);
        if (code == errc::ok) code = deliver(map_.weights, weights);
        for (std::size_t a = 0; a < max_attachments && code == errc::ok; ++a)
          code = deliver(map_.attachments[a], attached[a]);
        if (code != errc::ok) return code;
      }
    }
    return flush_all();
  }

  /// out[t] = the sum of factor times output of token t's copies, for this lane's share of tokens.
  [[nodiscard]] errc sum(const dispatch_plan& plan, std::size_t set, std::span<bf16> out,
                         lane as) noexcept {
    const std::size_t bytes = map_.output_bytes();
    const std::size_t outputs = set * map_.set_bytes + map_.outputs;
    const lane::range mine = as.share(plan.tokens());
    for (std::size_t t = mine.begin; t < mine.end; ++t) {
      const auto places = plan.places(t);
      for (std::size_t slot = 0; slot < places.size(); ++slot) {
        if (!places[slot].sent()) continue;
        const errc code = memory_->get(rank_id{places[slot].rank},
                                       outputs + places[slot].row * bytes, returned(t, slot));
        if (code != errc::ok) return code;
      }
    }
    if (const errc code = flush_all(); code != errc::ok) return code;

    sum_copies(plan, map_.hidden, out, as, [&](std::size_t t, std::size_t slot) noexcept {
      return reinterpret_cast<const bf16*>(returned(t, slot).data());
    });
    return errc::ok;
  }

 private:
  /// Hands out the parts of one token's staging memory, from its start.
  struct stage {
    std::span<std::byte> left;
    [[nodiscard]] std::span<std::byte> take(std::size_t bytes) noexcept {
      const auto part = left.first(bytes);
      left = left.subspan(bytes);
      return part;
    }
  };

  [[nodiscard]] errc put(rank_id to, std::size_t offset, std::span<const std::byte> part) noexcept {
    if (part.empty()) return errc::ok;
    if (to != mine_) return memory_->put(to, offset, part);
    // No signal to oneself would say when a put has arrived.
    std::memcpy(memory_->local().data() + offset, part.data(), part.size());
    return errc::ok;
  }

  [[nodiscard]] std::span<std::byte> returned(std::size_t t, std::size_t slot) const noexcept {
    const std::size_t bytes = map_.output_bytes();
    return memory_->local().subspan(map_.returned + (t * map_.copies + slot) * bytes, bytes);
  }
  [[nodiscard]] errc flush_all() noexcept {
    for (const rank_id peer : all_ranks{ranks_})
      if (const errc code = memory_->flush(peer); code != errc::ok) return code;
    return errc::ok;
  }

  window<Transport>* memory_;
  memory_map map_;
  [[no_unique_address]] Codec codec_;
  rank_id mine_;
  std::size_t ranks_;
};

}  // namespace peerbus::moe::detail
