// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/collective/all_reduce_add.hpp>
#include <peerbus/collective/detail/call.hpp>

namespace peerbus::collective::detail {

PEERBUS_INLINE sum_with_residual::sum_with_residual(team& on, const reducer& sum,
                                                    const operands& given) noexcept
    : add{sum},
      input{given.input.data()},
      residual{given.residual->data()},
      sources{call::sources_and_residual(on)},
      self{on.rank()} {}

PEERBUS_INLINE void sum_with_residual::combine(const void* callable, std::byte* out,
                                               std::span<const std::byte* const> ranks,
                                               std::size_t first, std::size_t elements) noexcept {
  const auto& fused = *static_cast<const sum_with_residual*>(callable);
  const std::byte* const added = fused.residual + (ranks[fused.self.index()] - fused.input);
  // Lanes that reduce at the same time find it set: see `reduce_by_lanes`.
  if (fused.sources.back() != added) fused.sources.back() = added;
  fused.add.part(out, fused.sources, first, elements);
}

PEERBUS_INLINE void all_reduce_add_bytes(team& on, const operands& given, const reducer& add,
                                         const call_options& options) {
  const sum_with_residual fused{on, add, given};
  all_reduce_bytes(on, given, fused.reduce(), options).run(given, fused.reduce());
}

}  // namespace peerbus::collective::detail
