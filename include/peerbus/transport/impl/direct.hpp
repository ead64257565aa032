// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/mapping.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/wait.hpp>
#include <peerbus/transport/direct.hpp>

namespace peerbus {

PEERBUS_INLINE direct_window::direct_window(window_shape shape, rank_id mine,
                                            std::vector<std::shared_ptr<const mapping>> parts)
    : shape_{shape}, mine_{mine}, parts_{std::move(parts)} {
  bases_.reserve(parts_.size());
  for (const auto& part : parts_) bases_.push_back(part->data());
}

PEERBUS_INLINE direct_path::direct_path(bootstrap& boot, wait_thresholds thresholds)
    : boot_{&boot}, members_{boot.members()}, thresholds_{thresholds} {}

}  // namespace peerbus
