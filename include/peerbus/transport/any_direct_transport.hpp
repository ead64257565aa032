// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstddef>
#include <utility>

#include <peerbus/core/rank.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/refinements.hpp>

namespace peerbus {

/// An `any_transport` that holds a `direct_transport` and satisfies that concept itself. It serves
/// code that needs the memory of all peers, such as `window::peer`.
class any_direct_transport : public any_transport {
 public:
  /// The refinements of `any_transport`, with `peer_memory` in place of `find_peer_memory` and
  /// `reach`.
  static constexpr transport_refinements refines = [] {
    transport_refinements all = any_transport::refines;
    all.peer_memory = true;
    all.find_peer_memory = all.reach = false;
    return all;
  }();

  /// Takes the transport `bus`. Allocates.
  template <class Held>
    requires(!std::derived_from<Held, any_transport>) && direct_transport<Held>
  explicit any_direct_transport(Held bus) : any_transport{std::move(bus)} {}

  /// Returns the start of the part of `peer`, a rank of the group.
  [[nodiscard]] std::byte* peer_memory(const window& memory, rank_id peer) const noexcept {
    return any_transport::find_peer_memory(memory, peer);
  }
  ///@{
  /// Deleted, because the type says that all peers are reached: use `peer_memory`.
  void find_peer_memory(const window& memory, rank_id peer) const = delete;
  void reach() const = delete;
  ///@}
};

static_assert(direct_transport<any_direct_transport> && !runnable_transport<any_direct_transport>);

}  // namespace peerbus
