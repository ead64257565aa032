// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

namespace peerbus::kernel {

/// Columns that share a scale in the kernels of fp8.
inline constexpr std::size_t group_columns = 128;

}  // namespace peerbus::kernel
