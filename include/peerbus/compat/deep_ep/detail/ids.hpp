// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <peerbus/compat/deep_ep/options.hpp>
#include <peerbus/compat/deep_ep/profile.hpp>
#include <peerbus/compat/deep_ep/tensor.hpp>
#include <peerbus/moe/config.hpp>

namespace peerbus::deep_ep::detail {

/// Returns `id`, or -1 for any negative id, because DeepEP skips all negative ids.
constexpr std::int64_t id_or_none(std::int64_t id) noexcept { return id < 0 ? -1 : id; }

/// Returns the treatment of ids of `num_experts` and more by the normal calls of a buffer.
constexpr moe::ids_outside other_ids_of(const buffer_options& options) noexcept {
  const bool can_skip =
      options.target == profile::unrestricted || options.target == profile::deepep_v1;
  return can_skip ? options.other_ids : moe::ids_outside::refused;
}

/// Calls `visit(i, id)` for the first `count` ids of a contiguous tensor of int32 or int64.
template <class Visit>
void for_each_id(const const_tensor& ids, std::size_t count, Visit&& visit) {
  if (ids.type() == dtype::int64)
    for (std::size_t i = 0; i < count; ++i) visit(i, ids.as<std::int64_t>()[i]);
  else
    for (std::size_t i = 0; i < count; ++i) visit(i, std::int64_t{ids.as<std::int32_t>()[i]});
}

/// Copies the first ids of a [T, K] tensor to `target` until it is full. Negative ids become -1.
/// Ids of `experts` and more also become -1 if `others` is `skipped`.
inline void copy_ids(const const_tensor& source, std::span<std::int64_t> target,
                     std::size_t experts, moe::ids_outside others) {
  const bool skips = others == moe::ids_outside::skipped;
  for_each_id(source, target.size(), [&](std::size_t i, std::int64_t id) {
    target[i] = skips && id >= static_cast<std::int64_t>(experts) ? -1 : id_or_none(id);
  });
}

}  // namespace peerbus::deep_ep::detail
