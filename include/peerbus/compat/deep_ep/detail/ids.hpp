// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include <peerbus/compat/deep_ep/tensor.hpp>

namespace peerbus::deep_ep::detail {

/// Calls `visit(i, id)` for the first `count` ids of a contiguous tensor of int32 or int64.
template <class Visit>
void for_each_id(const const_tensor& ids, std::size_t count, Visit&& visit) {
  if (ids.type() == dtype::int64)
    for (std::size_t i = 0; i < count; ++i) visit(i, ids.as<std::int64_t>()[i]);
  else
    for (std::size_t i = 0; i < count; ++i) visit(i, std::int64_t{ids.as<std::int32_t>()[i]});
}

}  // namespace peerbus::deep_ep::detail
