// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>

#include <peerbus/transport/simulated/platform.hpp>

namespace ep_predict {

/// The order in which each rank visits the others, as the library chooses it: ranks of its own host
/// first, from the next one on, then those of other hosts. Rank i of a host begins with rank i of
/// the next host. Hosts are the groups of a platform's first level.
class visit_order {
 public:
  visit_order(std::size_t ranks, const peerbus::simulated_platform& platform) noexcept
      : ranks_{ranks},
        host_{platform.levels.size() == 1 ? ranks : std::min(platform.levels[0].ranks, ranks)} {}

  /// Returns how many ranks `own` visits before `peer`, which is another rank.
  [[nodiscard]] std::size_t position(std::size_t own, std::size_t peer) const noexcept {
    const host near = host_of(own);
    if (peer >= near.begin && peer < near.begin + near.ranks)
      return (near.ranks + peer - own) % near.ranks - 1;
    const std::size_t from_host = (ranks_ + peer - near.begin - near.ranks) % ranks_;
    const std::size_t place = (own - near.begin) % near.others;
    return near.ranks - 1 + (near.others + from_host - place) % near.others;
  }
  /// Returns the rank that `own` visits after `position` others.
  [[nodiscard]] std::size_t peer(std::size_t own, std::size_t position) const noexcept {
    const host near = host_of(own);
    const std::size_t place = own - near.begin;
    if (position + 1 < near.ranks) return near.begin + (place + position + 1) % near.ranks;
    const std::size_t from_host = (position + 1 - near.ranks + place) % near.others;
    return (near.begin + near.ranks + from_host) % ranks_;
  }

 private:
  struct host {
    std::size_t begin;  ///< its first rank
    std::size_t ranks;
    std::size_t others;  ///< the ranks of other hosts, or 1 if there are none
  };
  [[nodiscard]] host host_of(std::size_t rank) const noexcept {
    const std::size_t begin = rank / host_ * host_;
    const std::size_t ranks = std::min(host_, ranks_ - begin);
    return {begin, ranks, ranks == ranks_ ? 1 : ranks_ - ranks};
  }

  std::size_t ranks_;
  std::size_t host_;  ///< the ranks of a host, except perhaps of the last one
};

}  // namespace ep_predict
