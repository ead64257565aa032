// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus::kernel {

/// The number of columns that share a scale in the fp8 kernels.
inline constexpr std::size_t group_columns = 128;

}  // namespace peerbus::kernel
