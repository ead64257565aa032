// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include <peerbus/core/rank.hpp>

namespace peerbus::detail::rdma {

/// The identity of a request: its queue pair and its number there. A completion carries it in 64
/// bits.
struct request_id {
  std::uint32_t pair = 0;  ///< peer x queue pairs per peer + queue pair
  /// The number of requests posted up to this send request, or the slot of a receive request.
  std::uint32_t number = 0;

  [[nodiscard]] static constexpr std::uint32_t pair_of(rank_id peer, std::size_t queue,
                                                       std::size_t queues) noexcept {
    return static_cast<std::uint32_t>(peer.index() * queues + queue);
  }

  [[nodiscard]] constexpr std::uint64_t encode() const noexcept {
    return std::uint64_t{pair} << 32U | number;
  }
  [[nodiscard]] static constexpr request_id decode(std::uint64_t bits) noexcept {
    return {static_cast<std::uint32_t>(bits >> 32U), static_cast<std::uint32_t>(bits)};
  }
};

}  // namespace peerbus::detail::rdma
