// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <peerbus/codec/concept.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::moe {

/// Where a received row comes from: its home rank and the token's index there.
struct row_origin {
  rank_id rank;
  std::uint32_t token;
  friend bool operator==(const row_origin&, const row_origin&) = default;
};

/// The rows that one local expert received, ordered by source rank, then by token, and the place
/// for what the expert makes of them. A view into the exchange's window: rows are valid until this
/// rank's next `dispatch` on the exchange; outputs are read by the home ranks during `combine` and
/// may be overwritten after the next `dispatch`.
template <token_codec Codec>
class expert_rows {
 public:
  using element = typename Codec::element;

  /// Pointers to the first row of this expert, and its block starts by source rank.
  struct memory {
    const std::byte* rows;
    const std::byte* scales;
    const std::uint32_t* origins;
    bf16* outputs;
    std::span<const std::uint32_t> blocks;  ///< [ranks + 1] rows, counted from `blocks[0]`
  };

  expert_rows(std::size_t id, std::size_t hidden, Codec codec, memory at)
      : id_{id}, hidden_{hidden}, codec_{codec}, at_{at} {}

  /// Number of the expert within the whole group.
  [[nodiscard]] std::size_t id() const noexcept { return id_; }
  [[nodiscard]] std::size_t hidden() const noexcept { return hidden_; }
  /// How many rows arrived.
  [[nodiscard]] std::size_t count() const noexcept {
    return at_.blocks.back() - at_.blocks.front();
  }

  /// All rows as the codec's elements: [count, row_bytes(hidden) / sizeof(element)], no gaps.
  [[nodiscard]] std::span<const element> rows() const noexcept {
    return {reinterpret_cast<const element*>(at_.rows), count() * row_bytes() / sizeof(element)};
  }
  /// Row `i`, below `count()`.
  [[nodiscard]] std::span<const element> row(std::size_t i) const noexcept {
    const std::size_t elements = row_bytes() / sizeof(element);
    return rows().subspan(i * elements, elements);
  }

  /// All scales: [count, scale_bytes(hidden) / sizeof(Scale)]; empty for codecs without any.
  template <class Scale = float>
  [[nodiscard]] std::span<const Scale> scales() const noexcept {
    return {reinterpret_cast<const Scale*>(at_.scales),
            count() * Codec::scale_bytes(hidden_) / sizeof(Scale)};
  }

  /// Row `i` as numbers: `out` has `hidden` elements.
  void decode(std::size_t i, std::span<float> out) const noexcept {
    const std::size_t scale_bytes = Codec::scale_bytes(hidden_);
    const std::span row{at_.rows + i * row_bytes(), row_bytes()};
    const std::span scales{at_.scales + i * scale_bytes, scale_bytes};
    codec_.decode(row, scales, out);
  }

  /// What the expert makes of its rows: [count, hidden], to be filled before `combine`.
  [[nodiscard]] std::span<bf16> outputs() const noexcept {
    return {at_.outputs, count() * hidden_};
  }
  /// The place for what becomes of row `i`, below `count()`.
  [[nodiscard]] std::span<bf16> output(std::size_t i) const noexcept {
    return outputs().subspan(i * hidden_, hidden_);
  }

  /// Number of rows that came from `source`; they lie together, in order of source ranks.
  [[nodiscard]] std::size_t count_from(rank_id source) const noexcept {
    return at_.blocks[source.index() + 1] - at_.blocks[source.index()];
  }
  /// Cost: linear in the ranks.
  [[nodiscard]] row_origin origin(std::size_t i) const noexcept {
    std::size_t source = 0;
    while (at_.blocks[source + 1] - at_.blocks[0] <= i) ++source;
    return {rank_id{source}, at_.origins[i]};
  }

 private:
  [[nodiscard]] std::size_t row_bytes() const noexcept { return Codec::row_bytes(hidden_); }

  std::size_t id_;
  std::size_t hidden_;
  [[no_unique_address]] Codec codec_;
  memory at_;
};

/// What one dispatch brought to this rank: a view, cheap to copy, valid as its rows are.
template <token_codec Codec>
class received {
 public:
  received(std::span<expert_rows<Codec>> experts, std::size_t rows, std::uint64_t ticket)
      : experts_{experts}, rows_{rows}, ticket_{ticket} {}

  /// One entry per local expert, also for those without rows.
  [[nodiscard]] std::span<expert_rows<Codec>> experts() const noexcept { return experts_; }
  /// Rows of all local experts.
  [[nodiscard]] std::size_t rows() const noexcept { return rows_; }
  /// Number of the dispatch it came from, by which `combine` knows stale views.
  [[nodiscard]] std::uint64_t ticket() const noexcept { return ticket_; }

 private:
  std::span<expert_rows<Codec>> experts_;
  std::size_t rows_;
  std::uint64_t ticket_;
};

}  // namespace peerbus::moe
