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
#include <peerbus/moe/detail/sum_copies.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/plan.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/window.hpp>

namespace peerbus::moe::detail {

/// Moves rows over transports whose peers' memory can only be put to and got from: tokens are
/// encoded into the sender's own window and put from there; outputs are got into slots
/// [token, top_k] of the home rank and summed there. Same bytes as `direct_rows`.
template <transport Transport, token_codec Codec>
class staged_rows {
 public:
  static constexpr road way = road::staged;

  staged_rows(window<Transport>& memory, const exchange_config& config,
              const exchange_layout& layout, Codec codec, rank_id mine, std::size_t ranks)
      : memory_{&memory},
        config_{config},
        layout_{layout},
        codec_{codec},
        mine_{mine},
        ranks_{ranks} {}

  /// Puts every copy of every token to its place. Visible at a peer after the next signal to it.
  [[nodiscard]] errc send(std::span<const bf16> tokens, const dispatch_plan& plan) noexcept {
    for (std::size_t t = 0; t < plan.tokens(); ++t) {
      const auto row = staged(layout_.staged_rows, t, Codec::row_bytes(config_.hidden));
      const auto scales = staged(layout_.staged_scales, t, Codec::scale_bytes(config_.hidden));
      const auto origin = staged(layout_.staged_origins, t, sizeof(std::uint32_t));
      codec_.encode(tokens.subspan(t * config_.hidden, config_.hidden), row, scales);
      const auto index = static_cast<std::uint32_t>(t);
      std::memcpy(origin.data(), &index, sizeof index);
      for (const row_place place : plan.places(t)) {
        if (!place.sent()) continue;
        for (const auto& [at, part] : {piece{layout_.rows, row}, piece{layout_.scales, scales},
                                       piece{layout_.origins, origin}}) {
          const std::size_t offset = at + place.row * part.size();
          if (const errc code = deliver(rank_id{place.rank}, offset, part); code != errc::ok)
            return code;
        }
      }
    }
    return flush_all();
  }

  /// out[t] = the weighted sum of the outputs of token t's copies, in slot order, in f32.
  [[nodiscard]] errc sum(const dispatch_plan& plan, std::span<bf16> out) noexcept {
    const std::size_t row_bytes = config_.hidden * sizeof(bf16);
    for (std::size_t t = 0; t < plan.tokens(); ++t) {
      const auto places = plan.places(t);
      for (std::size_t k = 0; k < places.size(); ++k) {
        if (!places[k].sent()) continue;
        const errc code =
            memory_->get(rank_id{places[k].rank}, layout_.outputs + places[k].row * row_bytes,
                         staged(layout_.returned, t * config_.top_k + k, row_bytes));
        if (code != errc::ok) return code;
      }
    }
    if (const errc code = flush_all(); code != errc::ok) return code;

    sum_copies(plan, config_.hidden, out, [&](std::size_t t, std::size_t k) noexcept {
      return reinterpret_cast<const bf16*>(
          staged(layout_.returned, t * config_.top_k + k, row_bytes).data());
    });
    return errc::ok;
  }

 private:
  struct piece {
    std::size_t at;
    std::span<const std::byte> part;
  };

  [[nodiscard]] errc deliver(rank_id to, std::size_t offset,
                             std::span<const std::byte> part) noexcept {
    if (to != mine_) return part.empty() ? errc::ok : memory_->put(to, offset, part);
    // No signal to oneself would say when a put has arrived.
    if (!part.empty()) std::memcpy(memory_->local().data() + offset, part.data(), part.size());
    return errc::ok;
  }

  [[nodiscard]] std::span<std::byte> staged(std::size_t at, std::size_t index,
                                            std::size_t bytes) const noexcept {
    return memory_->local().subspan(at + index * bytes, bytes);
  }
  [[nodiscard]] errc flush_all() noexcept {
    for (const rank_id peer : all_ranks{ranks_})
      if (const errc code = memory_->flush(peer); code != errc::ok) return code;
    return errc::ok;
  }

  window<Transport>* memory_;
  exchange_config config_;
  exchange_layout layout_;
  [[no_unique_address]] Codec codec_;
  rank_id mine_;
  std::size_t ranks_;
};

}  // namespace peerbus::moe::detail
