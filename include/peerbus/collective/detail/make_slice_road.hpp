// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <utility>

#include <peerbus/collective/detail/slice_road.hpp>
#include <peerbus/collective/team_map.hpp>
#include <peerbus/communicator/communicator.hpp>
#include <peerbus/communicator/make_together.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::collective::detail {

/// Makes the road of `comm`. Collective.
/// Throws, on all ranks: as `communicator::make_window`, and out_of_memory.
template <transport Transport>
std::unique_ptr<slice_road> make_slice_road(communicator<Transport>& comm, const team_map& map,
                                            deadline until) {
  auto memory = comm.make_window(map.window_bytes(), map.signals(), until);
  auto road =
      make_together(comm, "the tables of a team", until, [&]() -> std::unique_ptr<slice_road> {
        return std::make_unique<slice_road_over<Transport>>(comm, map, std::move(memory));
      });
  if constexpr (partly_direct_transport<Transport>) road->find_groups(comm.bus().boot(), until);
  return road;
}

}  // namespace peerbus::collective::detail
