// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/detail/hub.hpp>
#include <peerbus/bootstrap/detail/spoke.hpp>
#include <peerbus/bootstrap/idle_work.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/deadline.hpp>

namespace peerbus::detail {

/// The connections of one rank: those of rank 0 to all others, or that of another rank to rank 0.
class star {
 public:
  explicit(false) star(hub center) : ends_{std::move(center)} {}
  explicit(false) star(spoke end) : ends_{std::move(end)} {}

  /// Contract as `bootstrap::allgather`.
  std::vector<bootstrap::contribution> allgather(bootstrap::contribution mine, deadline until,
                                                 std::string_view doing, const membership& members,
                                                 idle_work& idle) {
    if (auto* center = std::get_if<hub>(&ends_))
      return center->allgather(std::move(mine), until, doing, members, idle);
    return std::get<spoke>(ends_).allgather(mine, until, doing, members, idle);
  }

 private:
  std::variant<hub, spoke> ends_;
};

}  // namespace peerbus::detail
