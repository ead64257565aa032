// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include <peerbus/communicator/window.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::collective::detail {

/// Returns the part of `peer`, another rank, if it loads and stores; otherwise nullptr.
template <transport Transport>
[[nodiscard]] std::byte* near_part(const window<Transport>& memory, rank_id peer) noexcept {
  if constexpr (direct_transport<Transport>)
    return memory.peer(peer).data();
  else if constexpr (partly_direct_transport<Transport>)
    return memory.find_peer(peer).data();
  else
    return nullptr;
}

}  // namespace peerbus::collective::detail
