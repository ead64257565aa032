// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/idle_work.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/deadline.hpp>

namespace peerbus::detail {

/// The connections of one rank. Rank 0 has a connection to each other rank (`star_root`). Each
/// other rank has a connection to rank 0 (`star_leaf`).
class star {
 public:
  star() = default;
  star(const star&) = delete;
  star& operator=(const star&) = delete;
  virtual ~star() = default;

  /// Carries out `bootstrap::allgather` over the connections. Advances `idle` while the call waits.
  virtual std::vector<bootstrap::contribution> allgather(bootstrap::contribution own_part,
                                                         deadline until, std::string_view doing,
                                                         const membership& members,
                                                         idle_work& idle) = 0;
};

}  // namespace peerbus::detail
