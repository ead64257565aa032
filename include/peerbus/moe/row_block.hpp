// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include <peerbus/codec/concept.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/memory_map.hpp>

namespace peerbus::moe {

/// Where a received row comes from: its home rank, the token's index there, and in which slot of
/// the token its output goes home (its k, or, rank-major, the number of this rank among the token's
/// ranks).
struct row_origin {
  rank_id rank;
  std::uint32_t token;
  std::uint32_t slot;
  friend bool operator==(const row_origin&, const row_origin&) = default;
};

/// Rows that lie together, ordered by source rank, then by token, and the places for what becomes
/// of them. A view into the exchange's window: rows are valid until this rank's `in_flight`th next
/// `dispatch_send` on the exchange. Outputs are the caller's to write from `dispatch_recv` to
/// `combine` or `combine_send`, and again after a refused combine, but never after one that went
/// well: other ranks, or the transport, may still read them when this rank's combine has returned.
template <token_codec Codec>
class row_block {
 public:
  using element = typename Codec::element;

  /// The memory of the batch that the block belongs to, from its row 0 on.
  struct memory {
    const memory_map* map = nullptr;
    std::byte* local = nullptr;           ///< the batch's part of this rank's window
    std::span<std::byte* const> homes{};  ///< the same of all ranks, if outputs lie at home
  };

  /// `arrivals`: the first row from each source rank, and the row after the last. The number behind
  /// the span is the first row of the next block.
  row_block(Codec codec, memory at, std::span<const std::uint32_t> arrivals) noexcept
      : codec_{codec}, at_{at}, arrivals_{arrivals} {}

  [[nodiscard]] std::size_t hidden() const noexcept { return at_.map->hidden; }
  /// How many rows arrived.
  [[nodiscard]] std::size_t count() const noexcept { return arrivals_.back() - first_row(); }
  /// The number of the first row among all rows of this rank, gaps included.
  [[nodiscard]] std::size_t first_row() const noexcept { return arrivals_.front(); }
  /// Rows up to the next block: those that arrived and the gap behind them.
  [[nodiscard]] std::size_t padded_count() const noexcept {
    return *(arrivals_.data() + arrivals_.size()) - first_row();
  }

  /// All rows as the codec's elements: [count, row_bytes(hidden) / sizeof(element)], no gaps.
  [[nodiscard]] std::span<const element> rows() const noexcept {
    return {reinterpret_cast<const element*>(part(at_.map->rows, row_bytes())),
            count() * row_bytes() / sizeof(element)};
  }
  /// Row `i`, below `count()`.
  [[nodiscard]] std::span<const element> row(std::size_t i) const noexcept {
    const std::size_t elements = row_bytes() / sizeof(element);
    return rows().subspan(i * elements, elements);
  }

  /// All scales: [count, scale_bytes(hidden) / sizeof(Scale)]; empty for codecs without any.
  template <class Scale = float>
  [[nodiscard]] std::span<const Scale> scales() const noexcept {
    return {reinterpret_cast<const Scale*>(part(at_.map->scales, scale_bytes())),
            count() * scale_bytes() / sizeof(Scale)};
  }

  /// What travelled with the rows as attachment `a`: [count, configured bytes / sizeof(T)]. Each
  /// row of it is aligned to the largest power of two, at most 64, that divides those bytes.
  template <class T = std::byte>
    requires std::is_trivially_copyable_v<T>
  [[nodiscard]] std::span<const T> attachment(std::size_t a) const noexcept {
    const std::size_t bytes = at_.map->attachment_bytes[a];
    return {reinterpret_cast<const T*>(part(at_.map->attachments[a], bytes)),
            count() * bytes / sizeof(T)};
  }

  /// Row `i` as numbers: `out` has `hidden` elements.
  void decode(std::size_t i, std::span<float> out) const noexcept {
    const std::span row{part(at_.map->rows, row_bytes()) + i * row_bytes(), row_bytes()};
    const std::span scales{part(at_.map->scales, scale_bytes()) + i * scale_bytes(), scale_bytes()};
    codec_.decode(row, scales, out);
  }

  /// What becomes of the rows: [count, hidden], to be filled before `combine`.
  /// Throws: `error` unsupported if outputs lie at home, where they are not side by side.
  [[nodiscard]] std::span<bf16> outputs() const {
    if (!at_.homes.empty())
      throw error{errc::unsupported,
                  "outputs(): with outputs_at::home each row's output lies at its home rank; "
                  "expected output(i) row by row"};
    return {output_here(0), count() * hidden()};
  }
  /// The place for what becomes of row `i`, below `count()`.
  [[nodiscard]] std::span<bf16> output(std::size_t i) const noexcept {
    if (at_.homes.empty()) return {output_here(i), hidden()};
    const wire_origin& from = wire(i);
    std::byte* const home = at_.homes[from.rank] + at_.map->outputs;
    const std::size_t slot = from.token * at_.map->copies + from.slot;
    return {reinterpret_cast<bf16*>(home + slot * at_.map->output_bytes()), hidden()};
  }

  /// Number of rows that came from `source`; they lie together, in order of source ranks.
  [[nodiscard]] std::size_t count_from(rank_id source) const noexcept {
    return arrivals_[source.index() + 1] - arrivals_[source.index()];
  }
  [[nodiscard]] row_origin origin(std::size_t i) const noexcept {
    const wire_origin& from = wire(i);
    return {rank_id{from.rank}, from.token, from.slot};
  }

 protected:
  /// Entry 0 of this block in the batch's array that begins at `offset`.
  [[nodiscard]] std::byte* part(std::size_t offset, std::size_t bytes_per_row) const noexcept {
    return at_.local + offset + first_row() * bytes_per_row;
  }
  [[nodiscard]] const memory_map& map() const noexcept { return *at_.map; }

 private:
  [[nodiscard]] std::size_t row_bytes() const noexcept { return at_.map->format.row_bytes; }
  [[nodiscard]] std::size_t scale_bytes() const noexcept { return at_.map->format.scale_bytes; }
  [[nodiscard]] const wire_origin& wire(std::size_t i) const noexcept {
    return reinterpret_cast<const wire_origin*>(part(at_.map->origins, sizeof(wire_origin)))[i];
  }
  [[nodiscard]] bf16* output_here(std::size_t i) const noexcept {
    return reinterpret_cast<bf16*>(part(at_.map->outputs, at_.map->output_bytes())) + i * hidden();
  }

  [[no_unique_address]] Codec codec_;
  memory at_;
  std::span<const std::uint32_t> arrivals_;
};

}  // namespace peerbus::moe
