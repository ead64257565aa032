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
#include <peerbus/moe/set_view.hpp>

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

/// Where the rows of a batch lie, and where their outputs go.
struct row_memory {
  set_view set;                       ///< the batch's set at this rank
  std::span<const set_view> ranks{};  ///< [ranks], empty views where loads and stores do not reach
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

  /// `arrivals`: the first row from each source rank, and the row after the last. The number behind
  /// the span is the first row of the next block.
  row_block(Codec codec, row_memory at, std::span<const std::uint32_t> arrivals) noexcept
      : codec_{codec}, at_{at}, arrivals_{arrivals} {}

  [[nodiscard]] std::size_t hidden() const noexcept { return map().hidden; }
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
    return {reinterpret_cast<const element*>(at_.set.row(first_row())),
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
    return {reinterpret_cast<const Scale*>(at_.set.scales(first_row())),
            count() * scale_bytes() / sizeof(Scale)};
  }

  /// What travelled with the rows as attachment `a`: [count, configured bytes / sizeof(T)]. Each
  /// row of it is aligned to the largest power of two, at most 64, that divides those bytes.
  template <class T = std::byte>
    requires std::is_trivially_copyable_v<T>
  [[nodiscard]] std::span<const T> attachment(std::size_t a) const noexcept {
    return {reinterpret_cast<const T*>(at_.set.attachment(a, first_row())),
            count() * map().attachment_bytes[a] / sizeof(T)};
  }

  /// Row `i` as numbers: `out` has `hidden` elements.
  void decode(std::size_t i, std::span<float> out) const noexcept {
    const std::size_t number = first_row() + i;
    codec_.decode(std::span{at_.set.row(number), row_bytes()},
                  std::span{at_.set.scales(number), scale_bytes()}, out);
  }

  /// What becomes of the rows: [count, hidden], to be filled before `combine`.
  /// Throws: `error` unsupported if outputs lie at home, where they are not side by side.
  [[nodiscard]] std::span<bf16> outputs() const {
    if (map().outputs_home)
      throw error{errc::unsupported,
                  "outputs(): with outputs_at::home each row's output lies at its home rank; "
                  "expected output(i) row by row"};
    return {at_.set.output(first_row()), count() * hidden()};
  }
  /// The place for what becomes of row `i`, below `count()`.
  [[nodiscard]] std::span<bf16> output(std::size_t i) const noexcept {
    if (!map().outputs_home) return {at_.set.output(first_row() + i), hidden()};
    const wire_origin& from = *at_.set.origin(first_row() + i);
    return {at_.ranks[from.rank].home_slot(from.token, from.slot), hidden()};
  }
  /// The place for what travels home beside the output of row `i`: [configured bytes / sizeof(T)],
  /// aligned as `attachment`. The caller's to write as outputs are; it goes home in a combine with
  /// `attached`, where `exchange::returned_attachment` gives it.
  template <class T = std::byte>
    requires std::is_trivially_copyable_v<T>
  [[nodiscard]] std::span<T> output_attachment(std::size_t i) const noexcept {
    const std::size_t number = first_row() + i;
    const wire_origin& from = *at_.set.origin(number);
    const set_view& home = at_.ranks[from.rank];
    std::byte* const place =
        home ? home.returned_attachment(from.token, from.slot) : at_.set.output_attachment(number);
    return {reinterpret_cast<T*>(place), map().output_attachment_bytes / sizeof(T)};
  }

  /// Number of rows that came from `source`; they lie together, in order of source ranks.
  [[nodiscard]] std::size_t count_from(rank_id source) const noexcept {
    return arrivals_[source.index() + 1] - arrivals_[source.index()];
  }
  [[nodiscard]] row_origin origin(std::size_t i) const noexcept {
    const wire_origin& from = *at_.set.origin(first_row() + i);
    return {rank_id{from.rank}, from.token, from.slot};
  }

 protected:
  /// The set that the block belongs to.
  [[nodiscard]] const set_view& set() const noexcept { return at_.set; }

 private:
  [[nodiscard]] const memory_map& map() const noexcept { return at_.set.map(); }
  [[nodiscard]] std::size_t row_bytes() const noexcept { return map().format.row_bytes; }
  [[nodiscard]] std::size_t scale_bytes() const noexcept { return map().format.scale_bytes; }

  [[no_unique_address]] Codec codec_;
  row_memory at_;
  std::span<const std::uint32_t> arrivals_;
};

}  // namespace peerbus::moe
