// SPDX-License-Identifier: MIT
#pragma once

#include <utility>

#include <peerbus/bootstrap/detail/launch_variables.hpp>
#include <peerbus/bootstrap/detail/met_ranks.hpp>
#include <peerbus/bootstrap/environment.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus {

PEERBUS_INLINE environment_bootstrap::environment_bootstrap(const launch_settings& settings,
                                                            deadline until)
    : environment_bootstrap{settings, until, detail::met_ranks::at(settings, until)} {}

PEERBUS_INLINE environment_bootstrap environment_bootstrap::from_environment(deadline until) {
  return environment_bootstrap{detail::read_launch_settings(), until};
}

PEERBUS_INLINE bool environment_bootstrap::launched() noexcept {
  if (detail::variable(detail::rank_choice)) return true;
  const auto* const launcher = detail::find_launcher();
  return launcher != nullptr && !detail::find_owner_of(*launcher);
}

PEERBUS_INLINE environment_bootstrap::environment_bootstrap(const launch_settings& settings,
                                                            deadline until, detail::met_ranks met)
    : joined_star{rank_id{settings.rank}, settings.size, met.states, std::move(met.connections),
                  until},
      local_rank_{settings.local_rank} {}

}  // namespace peerbus
