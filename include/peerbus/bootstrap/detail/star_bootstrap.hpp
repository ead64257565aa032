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
#include <variant>
#include <vector>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/detail/hub.hpp>
#include <peerbus/bootstrap/detail/os.hpp>
#include <peerbus/bootstrap/detail/spoke.hpp>
#include <peerbus/bootstrap/detail/state_page.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/cores.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus::detail {

using star = std::variant<hub, spoke>;

/// A rank that is a process, connected to rank 0 or, as rank 0, to all others.
class star_bootstrap : public bootstrap {
 public:
  [[nodiscard]] std::size_t cores_here() const noexcept override { return cores_here_; }
  [[nodiscard]] address_space addresses() const noexcept override {
    return address_space::separate;
  }

  [[nodiscard]] std::vector<contribution> allgather(contribution mine, deadline until,
                                                    std::string_view doing) override {
    const membership& present = *members();
    if (auto* center = std::get_if<hub>(&star_))
      return center->allgather(std::move(mine), until, doing, present);
    return std::get<spoke>(star_).allgather(mine, until, doing, present);
  }

 protected:
  /// The constructor only takes; `meet` talks.
  star_bootstrap(rank_id rank, std::size_t size, const state_page& states, star connections)
      : star_{std::move(connections)} {
    set_members(std::make_shared<membership>(rank, size, states.words(), states.memory(),
                                             std::vector<unique_fd>{}));
  }

  /// Collective: exchanges what lets ranks see each other's death at once (pidfds), and the cores.
  /// Throws: `error` as `allgather`.
  void meet(const state_page& states, deadline until) {
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

 private:
  star star_;
  std::size_t cores_here_ = 1;
};

}  // namespace peerbus::detail
