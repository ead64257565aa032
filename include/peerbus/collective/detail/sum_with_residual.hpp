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

/// A sum with the residual as one source more, behind those of all ranks. The own source tells
/// which elements are added, because it lies in the input.
struct sum_with_residual {
  reducer add;                          ///< the sum
  const std::byte* input;               ///< of this rank
  const std::byte* residual;            ///< what is added last
  std::span<const std::byte*> sources;  ///< of all ranks, and the residual
  rank_id self;                         ///< the rank of the caller

  /// Makes it for the operands of an operation.
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
