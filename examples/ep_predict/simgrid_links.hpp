// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <functional>

#include <peerbus/transport/simulated/links.hpp>
#include <peerbus/transport/simulated/platform.hpp>

/// The simulator SimGrid as the network of a simulation. Messages are flows, which share the cards
/// of a platform by max-min fairness: the sender's and the receiver's at the same time.
namespace ep_predict {

/// Returns whether this program was built with SimGrid.
[[nodiscard]] bool has_simgrid() noexcept;

/// Calls `work` with links between up to `ranks` ranks of `platform`. A card sends up to `streams`
/// messages at once, as many as there are if it is 0; the others wait in their order. A message
/// occupies the share of a card for its bytes and for `message_ns`. A process may call this once.
/// Cost: each arrival takes time in proportion to the flows at that moment.
/// Throws: what `work` throws; std::runtime_error if the program was built without SimGrid.
void with_simgrid(const peerbus::simulated_platform& platform, std::size_t ranks,
                  std::size_t streams, const std::function<void(peerbus::simulated_links&)>& work);

}  // namespace ep_predict
