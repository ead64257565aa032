// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstring>
#include <span>

#include <peerbus/compat/deep_ep/argument.hpp>
#include <peerbus/compat/deep_ep/tensor.hpp>
#include <peerbus/core/align.hpp>

/// The scales that tokens bring to a dispatch, of any strides: they travel beside each token, in
/// whole words of 4 bytes.
namespace peerbus::deep_ep::detail {

/// Requires that `scales` is none, or has the scales of `tokens` tokens, [tokens, any] or [tokens],
/// of a type of 4 bytes or 1 byte.
/// Throws: `error` invalid_argument.
inline void check_scales(const argument& what, const const_tensor& scales, std::size_t tokens) {
  if (!scales) return;
  bool typed = false;
  for (const dtype type : {dtype::float32, dtype::int32, dtype::int8, dtype::float8_e4m3fn})
    typed = typed || scales.type() == type;
  what.require((scales.dims() == 2 || scales.dims() == 1) && scales.size(0) == tokens && typed,
               "is ", scales, ", expected float32, int32 or one byte [", tokens, ", any] or [",
               tokens, "]");
  what.require(scales.elements() == 0 || scales.data() != nullptr, "is at null");
}

/// Returns the size in bytes of the scales of a token as they travel; 0 without scales.
inline std::size_t scale_bytes(const const_tensor& scales) noexcept {
  const std::size_t count = scales.dims() == 2 ? scales.size(1) : scales.dims();
  return align_up(count * bytes_of(scales.type()), 4);
}

/// Returns the scales as they travel, [tokens, scale_bytes]. Copies them to `room` if they have
/// gaps or do not fill whole words.
inline std::span<const std::byte> side_by_side(const const_tensor& scales, std::byte* room) {
  const auto* const source = static_cast<const std::byte*>(scales.data());
  const std::size_t tokens = scales.size(0);
  const std::size_t row = scale_bytes(scales);
  const std::size_t element = bytes_of(scales.type());
  const std::size_t count = scales.dims() == 2 ? scales.size(1) : 1;
  if (scales.contiguous() && row == count * element) return {source, tokens * row};
  const std::size_t stride = scales.dims() == 2 ? scales.stride(1) : 1;
  for (std::size_t t = 0; t < tokens; ++t) {
    std::byte* target = room + t * row;
    for (std::size_t s = 0; s < count; ++s, target += element)
      std::memcpy(target, source + (t * scales.stride(0) + s * stride) * element, element);
    std::memset(target, 0, row - count * element);
  }
  return {room, tokens * row};
}

/// Returns a view of the scales of `rows` received tokens at `arrived`, of the type and the number
/// of scales per token of `given`.
inline tensor scales_of(std::byte* arrived, const const_tensor& given, std::size_t rows) {
  if (given.dims() == 2)
    return {arrived,
            given.type(),
            {rows, given.size(1)},
            {scale_bytes(given) / bytes_of(given.type()), 1}};
  return {arrived, given.type(), {rows}, {scale_bytes(given) / bytes_of(given.type())}};
}

}  // namespace peerbus::deep_ep::detail
