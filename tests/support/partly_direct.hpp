// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include <peerbus/core/rank.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/refinements.hpp>

#include "support/indirect.hpp"

namespace test {

/// `Base` as a transport of two planes, the way a group of machines would be: ranks whose numbers
/// are both even or both odd are near and load and store as with `Base`; all others are far and
/// behave as over `indirect`.
template <peerbus::direct_transport Base>
class partly_direct : public indirect<Base> {
 public:
  using typename indirect<Base>::window;

  static constexpr peerbus::transport_refinements refines{
      .find_peer_memory = true, .adopt_window = peerbus::adopting_transport<Base>};

  using indirect<Base>::indirect;

  [[nodiscard]] std::byte* find_peer_memory(const window& at,
                                            peerbus::rank_id peer) const noexcept {
    const bool near = peer.index() % 2 == this->boot().rank().index() % 2;
    return near ? this->memory_of(at, peer) : nullptr;
  }
};

}  // namespace test
