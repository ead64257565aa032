// SPDX-License-Identifier: MIT
#pragma once

#include <utility>

#include <peerbus/transport/direct.hpp>

namespace peerbus {

PEERBUS_INLINE direct_window::direct_window(window_shape shape, rank_id own_rank,
                                            std::vector<window_memory> parts,
                                            std::vector<process_memory> processes)
    : shape_{shape}, mine_{own_rank}, processes_{std::move(processes)} {
  parts_.reserve(parts.size());
  owners_.reserve(parts.size());
  for (window_memory& part : parts) {
    parts_.push_back({part.data.data(), part.signals.data()});
    owners_.push_back(std::move(part.owner));
  }
}

PEERBUS_INLINE window_memory direct_window::part_at(std::byte* start,
                                                    std::shared_ptr<const mapping> owner,
                                                    window_shape shape) noexcept {
  // Fresh mapped memory is all zero, which is the value representation of a fresh signal_word.
  auto* const words = peerbus::detail::placed<signal_word>(start + signals_at(shape));
  return {{start, shape.bytes}, {words, shape.signals}, std::move(owner)};
}

PEERBUS_INLINE direct_path::direct_path(bootstrap& boot, wait_thresholds thresholds)
    : boot_{&boot}, members_{boot.members()}, thresholds_{thresholds} {}

}  // namespace peerbus
