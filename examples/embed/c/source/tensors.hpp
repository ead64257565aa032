// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include <peerbus/compat/deep_ep/tensor.hpp>

#include "failure.hpp"

/// Tensors of C's interface as tensors of C++ and back.
namespace peerbus::c_library {

/// Returns the view of a tensor that may be written, or none for a null pointer. `name` is that of
/// the argument.
/// Throws: `error` invalid_argument or unsupported for a tensor that C++'s view cannot express.
deep_ep::tensor read_tensor(const peerbus_tensor* given, std::string_view name);

/// Returns C's form of a tensor.
peerbus_array array_of(const deep_ep::tensor& view) noexcept;

}  // namespace peerbus::c_library
