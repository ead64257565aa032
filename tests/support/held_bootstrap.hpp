// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/rank.hpp>

namespace test {

/// A bootstrap that does what another one does. Tests derive from it what they change.
class held_bootstrap : public peerbus::bootstrap {
 public:
  explicit held_bootstrap(peerbus::bootstrap& held)
      : held_bootstrap{held, held.ranks_here(), held.cores_here()} {}
  /// Tells other numbers of ranks and cores of this host.
  held_bootstrap(peerbus::bootstrap& held, std::size_t ranks_here, std::size_t cores_here)
      : held_{held} {
    set_members(held.members());
    set_idle(held.idle());
    set_neighbours(held.near_ranks(), ranks_here, cores_here);
  }
  [[nodiscard]] bool passes_descriptors() const noexcept override {
    return held_.passes_descriptors();
  }
  [[nodiscard]] peerbus::address_space addresses() const noexcept override {
    return held_.addresses();
  }
  [[nodiscard]] std::vector<contribution> allgather(contribution mine, peerbus::deadline until,
                                                    std::string_view doing) override {
    return held_.allgather(std::move(mine), until, doing);
  }

 private:
  [[nodiscard]] std::unique_ptr<bootstrap> make_subgroup(const std::vector<peerbus::rank_id>& ranks,
                                                         peerbus::rank_id /*member*/,
                                                         peerbus::deadline until) override {
    return held_.subgroup(ranks, until);
  }

  peerbus::bootstrap& held_;
};

}  // namespace test
