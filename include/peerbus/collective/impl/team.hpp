// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <optional>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/collective/team_map.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/rank_group.hpp>

namespace peerbus::collective {

PEERBUS_INLINE team_options team::filled_in(team_options options,
                                            bool reads_on_shared_cores) noexcept {
  if (!options.window_bytes)
    options.window_bytes = std::size_t{reads_on_shared_cores ? 32U : 1U} << 10U;
  return options;
}

PEERBUS_INLINE team_options team::agreed_options(rank_group& group, const team_options& options,
                                                 const team_map& map, deadline until) {
  std::optional<error> objection;
  if (const std::size_t slice = map.slice_bytes(map.ranks); slice < least_slice_bytes)
    objection =
        error{errc::invalid_argument,
              peerbus::detail::concat("team_options::scratch_bytes is ", options.scratch_bytes,
                                      ", which gives each of ", map.ranks, " ranks slices of ",
                                      slice, " bytes, expected at least ", least_slice_bytes)};
  const std::array values{declared{"scratch_bytes", options.scratch_bytes},
                          declared{"one_shot_bytes", options.one_shot_bytes},
                          declared{"window_bytes", options.window_bytes.value_or(0)},
                          declared{"slot_bytes", map.slot_bytes}};
  group.agree("collective::team", values, until, objection);
  return options;
}

}  // namespace peerbus::collective
