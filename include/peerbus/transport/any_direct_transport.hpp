// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/concept.hpp>
#include <peerbus/transport/refinements.hpp>

namespace peerbus {

/// A transport with peer memory, chosen at run time: holds any `direct_transport`, so that
/// exchanges take the direct path. `peer_memory` costs no virtual call, because a window keeps the
/// addresses of all parts.
class any_direct_transport : public any_transport {
 public:
  /// A window of the held transport, with the addresses of the parts of all ranks.
  class window : public any_transport::window {
    friend any_direct_transport;
    window(any_transport::window made, std::vector<std::byte*> parts) noexcept
        : any_transport::window{std::move(made)}, parts_{std::move(parts)} {}

    std::vector<std::byte*> parts_;
  };

  /// The refinements of `any_transport`, and `peer_memory`.
  static constexpr transport_refinements refines = [] {
    transport_refinements all = any_transport::refines;
    all.peer_memory = true;
    return all;
  }();

  /// Takes the transport `bus`. Allocates.
  template <class Held>
    requires(!std::derived_from<Held, any_transport>) && direct_transport<Held>
  explicit any_direct_transport(Held bus) : any_transport{std::move(bus)} {}

  /// Makes a window of the held transport and notes the addresses of its parts. Contract as
  /// `make_window` of `transport`.
  [[nodiscard]] window make_window(window_shape shape, deadline until) {
    const auto make = [&]() -> window {
      any_transport::window made = make_here(shape, until);
      std::vector<std::byte*> parts;
      parts.reserve(boot().size());
      for (const rank_id rank : all_ranks{boot().size()})
        parts.push_back(held_peer_memory(made, rank));
      return {std::move(made), std::move(parts)};
    };
    return collective_on_all_ranks(boot(), a_window, until, make);
  }
  /// Returns the start of the part of `peer`, a rank of the group.
  [[nodiscard]] std::byte* peer_memory(const window& memory, rank_id peer) const noexcept {
    return memory.parts_[peer.index()];
  }
  ///@{
  /// Forwards the call to the held transport. The concept `transport` states its contract.
  [[nodiscard]] errc wait_at(rank_id owner, const window& memory, signal_id id, std::uint64_t value,
                             deadline until, std::optional<rank_id> awaited) noexcept {
    return held_wait_at(owner, memory, id, value, until, awaited);
  }
  [[nodiscard]] std::uint64_t value_at(rank_id owner, const window& memory,
                                       signal_id id) const noexcept {
    return held_value_at(owner, memory, id);
  }
  ///@}
};

static_assert(direct_transport<any_direct_transport> && !runnable_transport<any_direct_transport>);

}  // namespace peerbus
