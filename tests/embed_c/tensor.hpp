// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace embed_c {

/// A tensor of the test, with memory for its shape.
struct tensor : peerbus_tensor {
  std::array<std::int64_t, 4> sizes{};
  tensor(const void* values, std::uint8_t code, std::uint8_t bits,
         std::initializer_list<std::size_t> extents)
      : peerbus_tensor{} {
    data = const_cast<void*>(values);
    device_type = 1;
    dtype_code = code;
    dtype_bits = bits;
    dtype_lanes = 1;
    ndim = static_cast<std::int32_t>(extents.size());
    for (std::size_t i = 0; const std::size_t size : extents)
      sizes[i++] = static_cast<std::int64_t>(size);
    shape = sizes.data();
  }
  tensor(const tensor&) = delete;
  tensor& operator=(const tensor&) = delete;
};

}  // namespace embed_c
