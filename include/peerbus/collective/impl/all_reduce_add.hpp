// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>

#include <peerbus/collective/all_reduce.hpp>
#include <peerbus/collective/all_reduce_add.hpp>
#include <peerbus/collective/call_options.hpp>
#include <peerbus/collective/detail/call.hpp>
#include <peerbus/collective/detail/operands.hpp>
#include <peerbus/collective/detail/reducer.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::collective::detail {

/// A sum with the residual as one source more, behind those of all ranks. The own source tells
/// which elements are added, because it lies in the input.
struct sum_with_residual {
  const reducer& add;
  const operands& given;
  std::span<const std::byte*> sources;  // of all ranks, and the residual
  rank_id self;

  static void reduce(const void* callable, std::byte* out, std::span<const std::byte* const> ranks,
                     std::size_t elements) noexcept {
    const auto& fused = *static_cast<const sum_with_residual*>(callable);
    const std::ptrdiff_t offset = ranks[fused.self.index()] - fused.given.input.data();
    fused.sources.back() = fused.given.residual->data() + offset;
    fused.add(out, fused.sources, elements);
  }
};

PEERBUS_INLINE void all_reduce_add_bytes(team& on, const operands& given, const reducer& add,
                                         const call_options& options) {
  const sum_with_residual fused{add, given, call::sources_and_residual(on), on.rank()};
  all_reduce_bytes(on, given, reducer{"sum+add", &fused, &sum_with_residual::reduce}, options);
}

}  // namespace peerbus::collective::detail
