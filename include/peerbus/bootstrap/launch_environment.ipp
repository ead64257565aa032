// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/bootstrap/detail/launch_variables.hpp>
#include <peerbus/bootstrap/launch_environment.hpp>
#include <peerbus/core/error.hpp>

namespace peerbus {

PEERBUS_INLINE launch_environment read_launch_environment() {
  launch_environment found;
  const detail::launcher_names* const names = detail::find_launcher();
  if (names != nullptr)
    found.rank_variable = names->rank;
  else if (!detail::variable(detail::rank_choice))
    return found;
  try {
    // First, because settings that other hosts need may be missing.
    if (const auto size = names == nullptr ? std::nullopt : detail::variable(names->size))
      found.other_hosts = detail::sign_of_other_hosts(
          *names, detail::parse_variable(names->size, *size, 1, detail::most_ranks, "a size"));
    found.rank = detail::read_launch_settings(detail::hosts::any).rank;
  } catch (const error& failure) {
    found.trouble = failure.text();
  }
  return found;
}

PEERBUS_INLINE std::vector<std::string_view> launch_variable_names() {
  std::vector<std::string_view> names;
  for (const detail::launcher_names& launcher : detail::launchers)
    for (const char* const name : {launcher.rank, launcher.size, launcher.local_rank,
                                   launcher.local_size, launcher.job, launcher.required})
      if (name != nullptr) names.emplace_back(name);
  for (const char* const name : {detail::rank_choice, "PMIX_RANK", "SLURM_STEP_NUM_NODES"})
    names.emplace_back(name);
  return names;
}

}  // namespace peerbus
