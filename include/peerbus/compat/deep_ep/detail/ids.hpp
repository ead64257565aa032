// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <peerbus/compat/deep_ep/tensor.hpp>

namespace peerbus::deep_ep::detail {

/// Returns `id`, or -1 for any negative id: DeepEP passes over all of them alike.
constexpr std::int64_t id_or_none(std::int64_t id) noexcept { return id < 0 ? -1 : id; }

/// Calls `visit(i, id)` for the first `count` ids of a contiguous tensor of int32 or int64.
template <class Visit>
void for_each_id(const const_tensor& ids, std::size_t count, Visit&& visit) {
  if (ids.type() == dtype::int64)
    for (std::size_t i = 0; i < count; ++i) visit(i, ids.as<std::int64_t>()[i]);
  else
    for (std::size_t i = 0; i < count; ++i) visit(i, std::int64_t{ids.as<std::int32_t>()[i]});
}

/// Copies the first ids of a [T, K] tensor to `target`, as many as it has room for. All negative
/// ids become -1.
inline void copy_ids(const const_tensor& source, std::span<std::int64_t> target) {
  for_each_id(source, target.size(),
              [&](std::size_t i, std::int64_t id) { target[i] = id_or_none(id); });
}

}  // namespace peerbus::deep_ep::detail
