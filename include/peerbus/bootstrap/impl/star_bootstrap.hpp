// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/detail/os.hpp>
#include <peerbus/bootstrap/detail/star.hpp>
#include <peerbus/bootstrap/detail/star_bootstrap.hpp>
#include <peerbus/bootstrap/detail/state_page.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/cores.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus::detail {

PEERBUS_CONTROL_PATH star_bootstrap::star_bootstrap(rank_id rank, std::size_t size,
                                                    const state_page& states,
                                                    std::unique_ptr<star> connections)
    : star_{std::move(connections)} {
  set_members(std::make_shared<membership>(rank, size, states.words(), states.memory(),
                                           std::vector<unique_fd>{}));
}

PEERBUS_CONTROL_PATH star_bootstrap::~star_bootstrap() = default;

PEERBUS_CONTROL_PATH std::vector<bootstrap::contribution> star_bootstrap::allgather(
    contribution mine, deadline until, std::string_view doing) {
  return star_->allgather(std::move(mine), until, doing, *members(), *idle());
}

PEERBUS_CONTROL_PATH void star_bootstrap::meet(const state_page& states, deadline until) {
  const auto mine = usable_core_numbers();
  const auto bytes = std::as_bytes(std::span{mine});
  // Where pidfds are not to be had, only rank 0 sees deaths at once, by closed connections.
  auto given = allgather({{bytes.begin(), bytes.end()}, open_pidfd(::getpid())}, until,
                         "meeting of the ranks");
  std::vector<std::uint32_t> cores;
  std::vector<unique_fd> processes;
  for (contribution& one : given) {
    const std::size_t count = one.bytes.size() / sizeof(std::uint32_t);
    const std::size_t before = cores.size();
    cores.resize(before + count);
    if (count != 0) std::memcpy(&cores[before], one.bytes.data(), count * sizeof(std::uint32_t));
    processes.push_back(std::move(one.fd));
  }
  processes[rank().index()].reset();
  std::sort(cores.begin(), cores.end());
  cores.erase(std::unique(cores.begin(), cores.end()), cores.end());
  cores_here_ = std::max<std::size_t>(cores.size(), 1);
  set_members(std::make_shared<membership>(rank(), size(), states.words(), states.memory(),
                                           std::move(processes)));
}

}  // namespace peerbus::detail
