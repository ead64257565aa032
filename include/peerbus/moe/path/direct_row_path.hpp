// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include <peerbus/codec/concept.hpp>
#include <peerbus/communicator/any_window.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/lane.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/path/batch_input.hpp>
#include <peerbus/moe/path/concept.hpp>
#include <peerbus/moe/path/copy_targets.hpp>
#include <peerbus/moe/path/encoded_token.hpp>
#include <peerbus/moe/path/rank_sets.hpp>
#include <peerbus/moe/path/row_path_batch.hpp>
#include <peerbus/moe/path/sum_copies.hpp>
#include <peerbus/moe/plan/row_buffers.hpp>
#include <peerbus/moe/plan/token_order.hpp>
#include <peerbus/moe/row_stream.hpp>
#include <peerbus/moe/set_view.hpp>

namespace peerbus::moe {

/// The path for ranks whose memory can be loaded and stored. The sender writes each byte once, to
/// the place where the expert reads it. The home rank reads outputs at the places where the experts
/// wrote them.
template <token_codec Codec>
class direct_row_path {
 public:
  /// The requirements of the path: no staging, and outputs at the expert or at home, as configured.
  static constexpr row_path_memory needs{.stages = false, .outputs_may_be_home = true};

  /// Makes a path that serves the ranks whose part of `window` is memory for this rank, and leaves
  /// out copies for other ranks. Keeps a reference to `map`.
  direct_row_path(const any_window& window, const memory_map& map, Codec codec)
      : map_{&map},
        codec_{codec},
        own_rank_{window.group().rank()},
        ranks_{window.group().size()},
        sets_{map, ranks_, [&](rank_id rank) { return window.part(rank); }} {}

  /// Returns the sets of a batch: [ranks], empty for ranks that this path does not serve.
  [[nodiscard]] std::span<const set_view> sets(std::size_t set) const noexcept {
    return sets_.of(set);
  }

  /// Writes the rows, as `write` does. Contract as for `row_path`.
  [[nodiscard]] errc send(const row_path_batch& batch, lane caller,
                          lane_meeting /*meet*/) const noexcept {
    const handed_rows& handed = batch.input.handed_on;
    write(batch, caller,
          [&](std::size_t t) noexcept { return handed ? handed.encoded(t) : encoded_token{}; });
    return errc::ok;
  }

  /// Does nothing, because `sum` reads outputs where the experts wrote them, and the experts wrote
  /// the attachments at home.
  [[nodiscard]] errc publish(const row_path_batch& /*batch*/, lane /*caller*/,
                             lane_meeting /*meet*/) const noexcept {
    return errc::ok;
  }
  /// Does nothing, because `publish` reads no memory.
  [[nodiscard]] errc settle() const noexcept { return errc::ok; }

  /// Sums this lane's share of the tokens. Contract as for `row_path`.
  [[nodiscard]] errc sum(const row_path_batch& batch, const combine_sum& wanted,
                         lane caller) const noexcept {
    sum_copies(batch, sets(batch.set), own_rank_, wanted, caller);
    return errc::ok;
  }

  /// Writes every copy of this lane's share of the tokens to its place. `encoded(t)` returns token
  /// t if it is encoded already, else an empty `encoded_token`.
  template <class Encoded>
  void write(const row_path_batch& batch, lane caller, Encoded&& encoded) const noexcept {
    const std::size_t tokens = batch.leaving.tokens();
    const row_stream stream{{.rows = tokens * map_->copies, .row_bytes = map_->format.row_bytes},
                            batch.stream_from};
    const token_order order{tokens, caller, own_rank_, ranks_};
    for (std::size_t i = 0; i < order.size(); ++i) {
      const std::size_t t = order[i];
      const auto token = batch.input.token<token_of<Codec>>(t, map_->hidden);
      if (!batch.input.handed_on && i + 1 < order.size())
        prefetch(batch.input.token<token_of<Codec>>(order[i + 1], map_->hidden).data());
      const copy_targets targets{batch, t, sets(batch.set), own_rank_};
      if (const encoded_token ready = encoded(t); ready.row != nullptr)
        copy(ready, targets, stream);
      else
        encode(token, targets, stream, batch.buffers.of(caller));
    }
  }

 private:
  /// Copies an encoded token to the places of all its copies.
  void copy(const encoded_token& ready, const copy_targets& targets,
            const row_stream& stream) const noexcept {
    for (std::byte* const row : targets.rows()) stream.copy(row, ready.row, map_->format.row_bytes);
    for (std::byte* const scales : targets.scales())
      std::memcpy(scales, ready.scales, map_->format.scale_bytes);
  }

  /// Encodes a token once, in `buffer` if it fits, and copies it to the places of all its copies,
  /// one after the other. If the places lie in caches of other cores, storing to all of them in
  /// turn while encoding takes twice as long (docs/performance.md).
  void encode(std::span<const token_of<Codec>> token, const copy_targets& targets,
              const row_stream& stream, std::byte* buffer) const noexcept {
    const auto rows = targets.rows();
    if (rows.empty()) return;
    if constexpr (verbatim_codec<Codec>) {
      const auto* const bytes = reinterpret_cast<const std::byte*>(token.data());
      for (std::byte* const row : rows) stream.copy(row, bytes, token.size_bytes());
    } else {
      const std::size_t row_bytes = map_->format.row_bytes;
      const std::span scales{targets.scales()[0], map_->format.scale_bytes};
      const bool fits = row_bytes <= row_buffers::most_bytes;
      std::byte* const encoded = fits ? buffer : rows[0];
      codec_.encode(token, {encoded, row_bytes}, scales);
      for (std::byte* const row : rows.subspan(fits ? 0 : 1)) stream.copy(row, encoded, row_bytes);
      for (std::byte* const copy : targets.scales().subspan(1))
        std::memcpy(copy, scales.data(), scales.size());
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
