// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <span>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus::collective {

/// Where the parts of an operand lie, one for each rank. Part `r` has `counts[r]` elements and
/// begins at element `displacements[r]` of the operand. Without displacements, each part begins
/// where the one before ends. It refers to both arrays, which stay unchanged during the call.
///
/// A part outside its operand, and parts of an output that overlap, are refused. Parts of an input
/// may overlap, except for a `reduce_scatter_v` in place. Elements of an output between its parts
/// are not touched.
struct part_layout {
  std::span<const std::uint64_t> counts;           ///< [ranks], in elements
  std::span<const std::uint64_t> displacements{};  ///< [ranks], in elements, or empty
};

}  // namespace peerbus::collective
