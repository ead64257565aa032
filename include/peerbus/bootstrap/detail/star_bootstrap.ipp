// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include <peerbus/bootstrap/activity.hpp>
#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/bootstrap/detail/connection.hpp>
#include <peerbus/bootstrap/detail/failure.hpp>
#include <peerbus/bootstrap/detail/meet_as_subgroup.hpp>
#include <peerbus/bootstrap/detail/os.hpp>
#include <peerbus/bootstrap/detail/star.hpp>
#include <peerbus/bootstrap/detail/star_bootstrap.hpp>
#include <peerbus/bootstrap/detail/star_leaf.hpp>
#include <peerbus/bootstrap/detail/star_root.hpp>
#include <peerbus/bootstrap/detail/state_page.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/cores.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus::detail {

PEERBUS_INLINE star_bootstrap::star_bootstrap(rank_id rank, std::size_t size,
                                              const state_page& states,
                                              std::unique_ptr<star> connections)
    : star_{std::move(connections)} {
  set_members(std::make_shared<membership>(rank, size, states.words(), states.memory(),
                                           std::vector<unique_fd>{}, states.lines()));
}

PEERBUS_INLINE star_bootstrap::~star_bootstrap() = default;

PEERBUS_INLINE std::vector<bootstrap::contribution> star_bootstrap::allgather(
    contribution own_part, deadline until, std::string_view doing) {
  refuse_child(*members(), doing);
  if (has_gone_on()) return allgather_of_the_rest(std::move(own_part), until, doing);
  const auto wait = members()->begin_wait({.operation = group_operation::allgather});
  auto all = star_->allgather(std::move(own_part), until, doing, *members(), *idle());
  members()->end_wait(wait);
  return all;
}

PEERBUS_INLINE void star_bootstrap::meet(const state_page& states, deadline until) {
  const auto my_cores = usable_core_numbers();
  // Without pidfds only rank 0 sees deaths at once, by closed connections.
  contribution own_cores{{}, open_pidfd(::getpid())};
  append_bytes(own_cores.bytes, my_cores.data(), my_cores.size() * sizeof(std::uint32_t));
  auto given = allgather(std::move(own_cores), until, "meeting of the ranks");
  std::vector<std::uint32_t> cores;
  std::vector<unique_fd> processes;
  for (contribution& given_by_rank : given) {
    const std::size_t count = given_by_rank.bytes.size() / sizeof(std::uint32_t);
    const std::size_t before = cores.size();
    cores.resize(before + count);
    if (count != 0)
      std::memcpy(&cores[before], given_by_rank.bytes.data(), count * sizeof(std::uint32_t));
    processes.push_back(std::move(given_by_rank.fd));
  }
  processes[rank().index()].reset();
  std::sort(cores.begin(), cores.end());
  cores.erase(std::unique(cores.begin(), cores.end()), cores.end());
  set_one_host(cores.size());
  set_members(std::make_shared<membership>(rank(), size(), states.words(), states.memory(),
                                           std::move(processes), states.lines()));
}

/// Exchanges the connections of a subgroup in one allgather. Rank 0 of the subgroup contributes the
/// page of states. Each other member contributes one end of a connection and keeps the other end.
/// The subgroup therefore needs no rendezvous place: its connections exist when the allgather is
/// over.
PEERBUS_INLINE std::unique_ptr<bootstrap> star_bootstrap::make_subgroup(
    const std::vector<rank_id>& ranks, rank_id member, deadline until) {
  const bool is_first = member.index() == 0;
  contribution own_part;
  unique_fd leaf_end;
  const auto objection = objection_of("a subgroup's connections", [&] {
    if (is_first) {
      own_part.fd = state_page::make_file(ranks.size());
    } else {
      auto [root_end, own_end] = connected_pair(member);
      own_part.fd = std::move(root_end);
      leaf_end = std::move(own_end);
    }
  });
  auto given = gather_or_refuse(*this, "subgroup", std::move(own_part), objection, until);
  const unique_fd states = std::move(given[ranks.front().index()].fd);
  std::vector<connection> root_ends(ranks.size());
  for (std::size_t i = 1; is_first && i < ranks.size(); ++i)
    root_ends[i] = std::move(given[ranks[i].index()].fd);
  // A copy of an end that stayed open would hide the death of its owner.
  given.clear();
  return meet_as_subgroup(ranks, *members(), [&] {
    std::unique_ptr<star> connections;
    if (is_first)
      connections = std::make_unique<star_root>(std::move(root_ends));
    else
      connections = std::make_unique<star_leaf>(std::move(leaf_end));
    return std::make_unique<joined_star>(member, ranks.size(),
                                         state_page::open(ranks.size(), states),
                                         std::move(connections), until);
  });
}

PEERBUS_INLINE joined_star::joined_star(rank_id rank, std::size_t size, const state_page& states,
                                        std::unique_ptr<star> connections, deadline until)
    : star_bootstrap{rank, size, states, std::move(connections)} {
  try {
    meet(states, until);
  } catch (...) {
    members()->announce(members()->end_by_exception());
    throw;
  }
}

PEERBUS_INLINE joined_star::~joined_star() { members()->announce_end(exceptions_before_); }

}  // namespace peerbus::detail
