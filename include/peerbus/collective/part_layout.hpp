// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <span>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus::collective {

/// The places of an operand's parts, one part for each rank. Part `r` has `counts[r]` elements and
/// begins at element `displacements[r]` of the operand. Without displacements, each part begins
/// where the previous part ends. The object refers to both arrays, which must not change during the
/// call.
///
/// Operations refuse a part outside its operand, and parts of an output that overlap. Parts of an
/// input may overlap, except for a `reduce_scatter_v` in place. Elements of an output between its
/// parts are not changed.
struct part_layout {
  std::span<const std::uint64_t> counts;           ///< [ranks], in elements
  std::span<const std::uint64_t> displacements{};  ///< [ranks], in elements, or empty
};

}  // namespace peerbus::collective
