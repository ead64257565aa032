// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>

#include <peerbus/collective/detail/reducer.hpp>
#include <peerbus/collective/request.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::collective::detail {

/// A sum that adds the residual after the sources of all ranks. This rank's source lies in `input`.
/// The offset of the source in `input` is also the offset of the elements in the residual.
struct sum_with_residual {
  reducer add;                          ///< the sum
  const std::byte* input;               ///< this rank's input
  const std::byte* residual;            ///< the residual, added last
  std::span<const std::byte*> sources;  ///< all ranks' sources and the residual
  rank_id self;                         ///< the rank of the caller

  /// Makes the sum for `given`, which must have a residual.
  sum_with_residual(team& team, const reducer& sum, const request& given) noexcept;

  /// Returns the reduction, which refers to this object.
  [[nodiscard]] reducer reduce() const noexcept { return {"sum+add", this, &combine}; }

 private:
  static void combine(const void* callable, std::byte* out, std::span<const std::byte* const> ranks,
                      std::size_t first, std::size_t elements) noexcept;
};

}  // namespace peerbus::collective::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/collective/detail/sum_with_residual.ipp>  // IWYU pragma: keep
#endif
