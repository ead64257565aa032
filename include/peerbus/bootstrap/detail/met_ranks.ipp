// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/detail/connection.hpp>
#include <peerbus/bootstrap/detail/failure.hpp>
#include <peerbus/bootstrap/detail/local_rendezvous.hpp>
#include <peerbus/bootstrap/detail/met_ranks.hpp>
#include <peerbus/bootstrap/detail/rendezvous.hpp>
#include <peerbus/bootstrap/detail/rendezvous_host.hpp>
#include <peerbus/bootstrap/detail/rendezvous_joiner.hpp>
#include <peerbus/bootstrap/detail/star_bootstrap.hpp>
#include <peerbus/bootstrap/detail/star_leaf.hpp>
#include <peerbus/bootstrap/detail/star_root.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus::detail {

PEERBUS_INLINE met_ranks met_ranks::at(const launch_settings& settings, deadline until,
                                       const awaited_members& members) {
  if (settings.size == 0 || settings.size > most_ranks)
    throw error{errc::invalid_argument, concat("a world of ", settings.size, " ranks was given, ",
                                               "expected 1 to ", most_ranks)};
  if (settings.rank >= settings.size)
    throw error{errc::invalid_argument, concat("rank ", settings.rank, " of ", settings.size,
                                               " was given, expected a rank below the size")};
  if (settings.size == 1)
    return {state_page::make_named(state_page::name_of_ranks, 1),
            std::make_unique<star_root>(std::vector<connection>(1))};
  local_rendezvous_place place{settings};
  const rendezvous ours{settings.rank, settings.size, until, until.remaining(), members};
  if (settings.rank != 0) {
    joined met = rendezvous_joiner{place, ours}.join(1);
    return {state_page::open(settings.size, met.files[0]),
            std::make_unique<star_leaf>(std::move(met.connections[0]))};
  }
  unique_fd file;
  std::optional<state_page> states;
  std::optional<failure> problem;
  try {
    file = state_page::make_file(settings.size);
    states = state_page::open(settings.size, file);
  } catch (const error& caught) {  // The other ranks are told, so that they do not wait in vain.
    problem = failure{caught.code(), concat("rank 0: ", caught.text())};
  }
  const int files[] = {file.get()};
  std::vector<connection> leaves;
  for (auto& of_rank : rendezvous_host{place, ours}.gather(files, problem))
    leaves.push_back(std::move(of_rank[0]));
  return {std::move(*states), std::make_unique<star_root>(std::move(leaves))};
}

PEERBUS_INLINE std::unique_ptr<bootstrap> join_on_this_host(std::string name, rank_id member,
                                                            std::size_t count, deadline until,
                                                            const awaited_members& members) {
  const launch_settings settings{.rank = member.index(),
                                 .size = count,
                                 .local_rank = member.index(),
                                 .address = std::move(name),
                                 .port = 0,
                                 .job = {}};
  met_ranks met = met_ranks::at(settings, until, members);
  return std::make_unique<joined_star>(member, count, met.states, std::move(met.connections),
                                       until);
}

}  // namespace peerbus::detail
