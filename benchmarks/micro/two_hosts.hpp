// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/by_all_gather.hpp>
#include <peerbus/bootstrap/tcp.hpp>
#include <peerbus/bootstrap/tcp_settings.hpp>
#include <peerbus/core/deadline.hpp>

namespace micro {

inline peerbus::deadline patience() { return peerbus::deadline::after(std::chrono::minutes{1}); }

/// The ranks of `boot` as those of two hosts, which meet over TCP, as a mesh if `is_mesh`.
inline std::unique_ptr<peerbus::bootstrap> meet_as_hosts(peerbus::bootstrap& boot,
                                                         bool is_mesh = true) {
  const auto gather = [&](std::span<const std::byte> own) {
    std::vector<std::byte> all;
    for (const auto& given : boot.allgather({{own.begin(), own.end()}, {}}, patience(), "meeting"))
      all.insert(all.end(), given.bytes.begin(), given.bytes.end());
    return all;
  };
  const auto over_network = [is_mesh](peerbus::tcp_settings seat, peerbus::deadline until) {
    seat.host = "host " + std::to_string(seat.rank % 2);
    seat.mesh = is_mesh;
    return std::make_unique<peerbus::tcp_bootstrap>(seat, until);
  };
  return peerbus::bootstrap_by_all_gather(boot.rank().index(), boot.size(), gather, over_network,
                                          patience(), {.address = "127.0.0.1", .over_tcp = true});
}

}  // namespace micro
