// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus::detail::rdma {

/// The largest number of devices that a rank may use at the same time.
inline constexpr std::size_t most_rails = 4;

/// The keys by which the devices of a rank reach one piece of memory, indexed by [device].
using rail_keys = std::array<std::uint32_t, most_rails>;

}  // namespace peerbus::detail::rdma
