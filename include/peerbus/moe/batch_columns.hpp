// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include <peerbus/codec/concept.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/placed.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/set_view.hpp>

namespace peerbus::moe {

/// The arrays that contain the rows of one batch. Entry i of each array belongs to row i among all
/// rows of this rank. There are `memory_map::row_capacity` entries, which include gaps between
/// blocks and rows that no rank sent. The arrays are for callers that pad, rescale or relabel rows
/// in place, or that pass whole arrays to a kernel. A view that is cheap to copy.
///
/// The caller may write the arrays from `dispatch_recv` until this rank has called `dispatch_send`
/// or `dispatch` `in_flight` more times. Outputs are an exception: combine reads them, so that the
/// rules of `row_block` apply to them.
template <token_codec Codec>
class batch_columns {
 public:
  /// The type in which the codec stores a row.
  using element = typename Codec::element;

  /// Makes the view. `set` is the set of the batch at this rank.
  explicit batch_columns(const set_view& set) noexcept
      : batch_columns{set, peerbus::detail::placed<std::int32_t>(set.experts(0))} {}
  /// Makes the view for local expert ids that begin at `experts`.
  batch_columns(const set_view& set, std::int32_t* experts) noexcept
      : set_{set}, experts_{experts} {}

  /// Returns the rows: [row_capacity, row_bytes(hidden) / sizeof(element)].
  [[nodiscard]] std::span<element> rows() const noexcept {
    return column<element>(set_.row(0), map().format.row_bytes);
  }
  /// Returns the scales: [row_capacity, scale_bytes(hidden) / sizeof(Scale)]. Empty for codecs
  /// without scales.
  template <class Scale = float>
  [[nodiscard]] std::span<Scale> scales() const noexcept {
    return column<Scale>(set_.scales(0), map().format.scale_bytes);
  }
  /// Returns attachment `a`: [row_capacity, configured bytes / sizeof(T)], aligned as in
  /// `row_block::attachment`.
  template <class T = std::byte>
    requires std::is_trivially_copyable_v<T>
  [[nodiscard]] std::span<T> attachment(std::size_t a) const noexcept {
    return column<T>(set_.attachment(a, 0), map().attachment_bytes[a]);
  }
  /// Returns the local expert ids of the slots of each row: [row_capacity, top_k]. Empty unless the
  /// layout is rank-major.
  [[nodiscard]] std::span<std::int32_t> experts() const noexcept {
    return {experts_, map().row_capacity * map().slot_bytes / sizeof(std::int32_t)};
  }
  /// Returns the weights of the slots of each row: [row_capacity, top_k]. Empty unless the layout
  /// is rank-major.
  [[nodiscard]] std::span<float> weights() const noexcept {
    return column<float>(set_.weights(0), map().slot_bytes);
  }
  /// Returns the outputs: [row_capacity, hidden]. Empty if outputs lie at their home ranks.
  [[nodiscard]] std::span<bf16> outputs() const noexcept {
    return {set_.output(0),
            map().outputs_home ? 0 : map().row_capacity * map().output_bytes() / sizeof(bf16)};
  }

 private:
  [[nodiscard]] const memory_map& map() const noexcept { return set_.map(); }

  template <class T>
  [[nodiscard]] std::span<T> column(std::byte* first_row,
                                    std::size_t bytes_per_row) const noexcept {
    return {peerbus::detail::placed<T>(first_row), map().row_capacity * bytes_per_row / sizeof(T)};
  }

  set_view set_;
  std::int32_t* experts_;
};

}  // namespace peerbus::moe
