// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include <peerbus/collective/call_options.hpp>
#include <peerbus/collective/detail/call_rounds.hpp>
#include <peerbus/collective/detail/operation.hpp>
#include <peerbus/collective/request.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/function_ref.hpp>

namespace peerbus::collective::detail {

/// The tokens of an `all_gather_coded`, the same on all ranks.
struct coded_shape {
  std::string_view codec;         ///< the name of the codec
  std::size_t tokens = 0;         ///< the number of tokens of each rank
  std::size_t hidden = 0;         ///< the number of elements of a token
  std::size_t row_bytes = 0;      ///< the size of an encoded token
  std::size_t scale_bytes = 0;    ///< the size of its scales
  std::size_t element_bytes = 0;  ///< the size of an element of a token that is not encoded

  /// Returns the offset of the scales of a row in a slice, from the start of the row.
  [[nodiscard]] constexpr std::size_t scales_at() const noexcept {
    return align_up(std::max<std::size_t>(row_bytes, 1), 16);
  }
  /// Returns the size of a row with its scales in a slice, a multiple of 16.
  [[nodiscard]] constexpr std::size_t record_bytes() const noexcept {
    return scales_at() + align_up(scale_bytes, 16);
  }
};

/// A row and its scales in a slice.
template <class Byte>
struct coded_place {
  Byte* row;
  Byte* scales;
};

/// The caller's ranges of an `all_gather_coded`.
struct coded_operands {
  const void* tokens = nullptr;     ///< this rank's tokens
  std::size_t elements = 0;         ///< the number of elements of `tokens`
  std::size_t hidden_multiple = 1;  ///< `hidden` must be a multiple of it
  std::span<std::byte> rows{};      ///< the target of rows or decoded tokens of all ranks
  std::span<std::byte> scales{};    ///< the target of scales, if rows stay encoded
  std::size_t each_row = 0;         ///< the size of a token in `rows`, in bytes
  std::size_t each_scales = 0;      ///< the size of a token's scales in `scales`, in bytes
  bool decodes_in_scratch = false;  ///< whether a row is decoded to `hidden` floats first
  bool may_be_in_place = false;     ///< whether decoded tokens have the type of `tokens`
};

/// A callable that encodes this rank's token `index` to a slice.
using encode_token =
    peerbus::detail::function_ref<void(std::size_t index, const coded_place<std::byte>& place)>;
/// A callable that takes a token out of a slice. `index` counts the tokens of all ranks. `scratch`
/// has room for a token if `coded_operands::decodes_in_scratch` is set.
using take_token = peerbus::detail::function_ref<void(
    std::size_t index, const coded_place<const std::byte>& place, std::span<float> scratch)>;

/// Returns the objection to the arguments of a call, or an empty string.
std::string object_to_coded(const team& team, const coded_shape& shape,
                            const coded_operands& given);

/// Begins `all_gather_coded` for any codec and output. `carry_out` must call `gather_coded_slices`.
operation all_gather_coded_bytes(team& team, const coded_shape& shape, const coded_operands& given,
                                 const call_options& options, operation::coded_body* carry_out);

/// Does the rounds of an `all_gather_coded`.
/// Throws: as `call_rounds::await`.
void gather_coded_slices(call_rounds& gather, const coded_shape& shape, encode_token encode,
                         take_token take);

}  // namespace peerbus::collective::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/collective/detail/coded_gather.ipp>  // IWYU pragma: keep
#endif
