// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include <peerbus/moe/config.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/plan/copy_order.hpp>
#include <peerbus/moe/plan/home_order.hpp>

namespace peerbus::moe {

/// The order in which the copies of a batch are put, and the order in which its outputs are put
/// home. Only the constructor allocates.
struct put_order {
  /// Allocates for the largest batch that `config` allows.
  put_order(const exchange_config& config, const block_geometry& geometry, std::size_t rank_count)
      : copies{config, geometry, rank_count}, outputs{config, geometry, rank_count} {}

  copy_order copies;   ///< the order in which copies leave
  home_order outputs;  ///< the order in which outputs go home
};

}  // namespace peerbus::moe
