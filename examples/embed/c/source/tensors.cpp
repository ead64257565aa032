// SPDX-License-Identifier: MIT
#include "tensors.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::c_library {

namespace {

using deep_ep::dtype;

/// An element type in DLPack's numbers and in ours.
struct element_type {
  std::uint8_t code;
  std::uint8_t bits;
  dtype type;
};

/// For reading, the first entry of a pair of numbers counts; for writing, the first entry of a
/// type.
constexpr std::array element_types{element_type{PEERBUS_BOOL, 8, dtype::boolean},
                                   element_type{PEERBUS_INT, 8, dtype::int8},
                                   element_type{PEERBUS_INT, 32, dtype::int32},
                                   element_type{PEERBUS_INT, 64, dtype::int64},
                                   element_type{PEERBUS_FLOAT, 32, dtype::float32},
                                   element_type{PEERBUS_BFLOAT, 16, dtype::bfloat16},
                                   element_type{PEERBUS_FLOAT8_E4M3FN, 8, dtype::float8_e4m3fn},
                                   element_type{PEERBUS_UINT, 8, dtype::float8_e4m3fn}};

dtype type_of(const peerbus_tensor& given, std::string_view name) {
  for (const element_type& known : element_types)
    if (given.dtype_code == known.code && given.dtype_bits == known.bits && given.dtype_lanes == 1)
      return known.type;
  throw error{errc::invalid_argument,
              concat(name, ": DLPack's type code ", given.dtype_code, " with ", given.dtype_bits,
                     " bits and ", given.dtype_lanes,
                     " lanes, expected bool, int8, int32, int64, float32, bfloat16, "
                     "float8_e4m3fn or uint8 (for E4M3)")};
}

std::size_t extent(std::int64_t value, std::string_view name, std::string_view what) {
  if (value < 0)
    throw error{errc::invalid_argument,
                concat(name, ": ", what, " ", value, ", expected none below 0")};
  return static_cast<std::size_t>(value);
}

}  // namespace

deep_ep::tensor read_tensor(const peerbus_tensor* given, std::string_view name) {
  if (given == nullptr) return {};
  constexpr std::int32_t cpu = 1;
  if (given->device_type != cpu)
    throw error{errc::invalid_argument, concat(name, " is on DLPack's device type ",
                                               given->device_type, ", expected 1, the CPU")};
  const auto most = static_cast<std::int32_t>(deep_ep::const_tensor::most_dims);
  if (given->ndim < 1 || given->ndim > most)
    throw error{errc::invalid_argument,
                concat(name, " has ", given->ndim, " dimensions, expected 1 to ", most)};
  if (given->shape == nullptr) throw error{errc::invalid_argument, concat(name, ": shape is NULL")};
  const dtype type = type_of(*given, name);
  const auto dims = static_cast<std::size_t>(given->ndim);
  deep_ep::const_tensor::extents sizes{};
  deep_ep::const_tensor::extents strides{};
  bool empty = false;
  std::size_t next = 1;
  for (std::size_t d = dims; d-- > 0;) {
    sizes[d] = extent(given->shape[d], name, "size");
    strides[d] = given->strides == nullptr ? next : extent(given->strides[d], name, "stride");
    if (sizes[d] != 0 && next > SIZE_MAX / 16 / sizes[d])
      throw error{errc::invalid_argument, concat(name, " has more elements than memory")};
    next *= sizes[d];
    empty = empty || sizes[d] == 0;
  }
  if (given->data == nullptr && !empty)
    throw error{errc::invalid_argument, concat(name, ": data is NULL")};
  const auto address = reinterpret_cast<std::uintptr_t>(given->data);
  if (given->byte_offset > std::numeric_limits<std::uintptr_t>::max() - address)
    throw error{errc::invalid_argument,
                concat(name, ": byte_offset is ", given->byte_offset, ", beyond all memory")};
  std::byte* const data =
      given->data == nullptr ? nullptr : static_cast<std::byte*>(given->data) + given->byte_offset;
  if (reinterpret_cast<std::uintptr_t>(data) % deep_ep::bytes_of(type) != 0)
    throw error{errc::invalid_argument, concat(name, " is not aligned to its elements of ",
                                               deep_ep::bytes_of(type), " bytes")};
  switch (dims) {
    case 1: return {data, type, {sizes[0]}, {strides[0]}};
    case 2: return {data, type, {sizes[0], sizes[1]}, {strides[0], strides[1]}};
    default:
      return {data, type, {sizes[0], sizes[1], sizes[2]}, {strides[0], strides[1], strides[2]}};
  }
}

peerbus_array array_of(const deep_ep::tensor& view) noexcept {
  peerbus_array result{};
  if (!view) return result;
  result.data = view.data();
  result.ndim = static_cast<std::int32_t>(view.dims());
  result.dtype_lanes = 1;
  for (const element_type& known : element_types)
    if (known.type == view.type()) {
      result.dtype_code = known.code;
      result.dtype_bits = known.bits;
      break;
    }
  for (std::size_t d = 0; d < view.dims(); ++d) {
    result.shape[d] = static_cast<std::int64_t>(view.size(d));
    result.strides[d] = static_cast<std::int64_t>(view.stride(d));
  }
  return result;
}

}  // namespace peerbus::c_library
