// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <peerbus/codec/concept.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/detail/sum_copies.hpp>
#include <peerbus/moe/layout.hpp>
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

  direct_rows(window<Transport>& memory, const exchange_config& config,
              const exchange_layout& layout, Codec codec, rank_id, std::size_t ranks)
      : config_{config},
        layout_{layout},
        codec_{codec},
        encoded_(Codec::row_bytes(config.hidden)),
        encoded_scales_(Codec::scale_bytes(config.hidden)) {
    for (const rank_id peer : all_ranks{ranks}) parts_.push_back(memory.peer(peer).data());
  }

  /// Writes every copy of every token to its place. Visible at a peer after the next signal to it.
  [[nodiscard]] errc send(std::span<const bf16> tokens, const dispatch_plan& plan) noexcept {
    for (std::size_t t = 0; t < plan.tokens(); ++t) {
      const auto token = tokens.subspan(t * config_.hidden, config_.hidden);
      if (t + 1 < plan.tokens()) prefetch(token.data() + config_.hidden);
      std::byte* rows[max_top_k];
      std::byte* scales[max_top_k];
      std::size_t copies = 0;
      const auto origin = static_cast<std::uint32_t>(t);
      for (const row_place place : plan.places(t)) {
        if (!place.sent()) continue;
        std::byte* const part = parts_[place.rank];
        rows[copies] = part + layout_.rows + place.row * Codec::row_bytes(config_.hidden);
        scales[copies++] = part + layout_.scales + place.row * Codec::scale_bytes(config_.hidden);
        std::memcpy(part + layout_.origins + place.row * sizeof origin, &origin, sizeof origin);
      }
      encode(token, {rows, copies}, {scales, copies});
    }
    return errc::ok;
  }

  /// out[t] = the weighted sum of the outputs of token t's copies, in slot order, in f32.
  [[nodiscard]] errc sum(const dispatch_plan& plan, std::span<bf16> out) const noexcept {
    sum_copies(plan, config_.hidden, out, [&](std::size_t t, std::size_t k) noexcept {
      const row_place place = plan.places(t)[k];
      return reinterpret_cast<const bf16*>(parts_[place.rank] + layout_.outputs) +
             place.row * config_.hidden;
    });
    return errc::ok;
  }

 private:
  /// Encodes once, however many copies leave.
  void encode(std::span<const bf16> token, std::span<std::byte* const> rows,
              std::span<std::byte* const> scales) noexcept {
    if constexpr (verbatim_codec<Codec>) {
      for (std::byte* const row : rows) std::memcpy(row, token.data(), token.size_bytes());
    } else if constexpr (multicast_codec<Codec>) {
      codec_.encode_copies(token, rows, scales);
    } else {
      codec_.encode(token, std::span<std::byte>{encoded_}, std::span<std::byte>{encoded_scales_});
      for (std::byte* const row : rows) std::memcpy(row, encoded_.data(), encoded_.size());
      if (encoded_scales_.empty()) return;
      for (std::byte* const place : scales)
        std::memcpy(place, encoded_scales_.data(), encoded_scales_.size());
    }
  }

  /// The next token comes in while the stores of this one wait for their cache lines.
  void prefetch(const bf16* token) const noexcept {
    const auto* const bytes = reinterpret_cast<const char*>(token);
    for (std::size_t at = 0; at < config_.hidden * sizeof(bf16); at += cache_line_bytes)
      __builtin_prefetch(bytes + at, 0, 2);
  }

  exchange_config config_;
  exchange_layout layout_;
  [[no_unique_address]] Codec codec_;
  std::vector<std::byte*> parts_;
  std::vector<std::byte> encoded_;
  std::vector<std::byte> encoded_scales_;
};

}  // namespace peerbus::moe::detail
