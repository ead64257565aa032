// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include <peerbus/codec/concept.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/set_view.hpp>

namespace peerbus::moe {

/// The arrays that the rows of one batch lie in, writable and in full. Entry i of each array
/// belongs to row i among all rows of this rank, and there are `memory_map::row_capacity` entries:
/// gaps between blocks and rows that no rank sent are included. For callers who pad, rescale or
/// relabel rows in place, or who hand whole arrays to a kernel. A view, cheap to copy.
///
/// The caller may write all of it from `dispatch_recv` until this rank's `in_flight`th next
/// `dispatch_send`; combine reads nothing of it but outputs, whose rules are those of `row_block`.
template <token_codec Codec>
class batch_columns {
 public:
  using element = typename Codec::element;

  /// `set` is the batch's set at this rank.
  explicit batch_columns(const set_view& set) noexcept : set_{set} {}

  /// [row_capacity, row_bytes(hidden) / sizeof(element)].
  [[nodiscard]] std::span<element> rows() const noexcept {
    return column<element>(set_.row(0), map().format.row_bytes);
  }
  /// [row_capacity, scale_bytes(hidden) / sizeof(Scale)]; empty for codecs without scales.
  template <class Scale = float>
  [[nodiscard]] std::span<Scale> scales() const noexcept {
    return column<Scale>(set_.scales(0), map().format.scale_bytes);
  }
  /// [row_capacity, configured bytes / sizeof(T)], aligned as in `row_block::attachment`.
  template <class T = std::byte>
    requires std::is_trivially_copyable_v<T>
  [[nodiscard]] std::span<T> attachment(std::size_t a) const noexcept {
    return column<T>(set_.attachment(a, 0), map().attachment_bytes[a]);
  }
  /// The local expert ids of the rows' slots: [row_capacity, top_k]; rank-major only, else empty.
  [[nodiscard]] std::span<std::int32_t> experts() const noexcept {
    return column<std::int32_t>(set_.experts(0), map().slot_bytes);
  }
  /// The weights of the rows' slots: [row_capacity, top_k]; rank-major only, else empty.
  [[nodiscard]] std::span<float> weights() const noexcept {
    return column<float>(set_.weights(0), map().slot_bytes);
  }
  /// [row_capacity, hidden]; empty if outputs lie at home.
  [[nodiscard]] std::span<bf16> outputs() const noexcept {
    return column<bf16>(set_.output(0), map().outputs_home ? 0 : map().output_bytes());
  }

 private:
  [[nodiscard]] const memory_map& map() const noexcept { return set_.map(); }

  template <class T, class Place>
  [[nodiscard]] std::span<T> column(Place* first, std::size_t bytes_per_row) const noexcept {
    return {reinterpret_cast<T*>(first), map().row_capacity * bytes_per_row / sizeof(T)};
  }

  set_view set_;
};

}  // namespace peerbus::moe
