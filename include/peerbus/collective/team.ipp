// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <limits>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::collective {

PEERBUS_INLINE team_options team::filled_in(team_options options, page_road road, std::size_t ranks,
                                            bool shares_cores) noexcept {
  const bool loads = road == page_road::loads;
  if (!options.one_shot_bytes && loads && !detail::has_costs_of(options.costs, road))
    options.one_shot_bytes = std::size_t{32} << 10U;
  if (!options.window_bytes)
    options.window_bytes = std::size_t{loads && shares_cores ? 32U : 1U} << 10U;
  if (!options.stream_bytes)
    options.stream_bytes = loads && ranks == 2 && !shares_cores
                               ? std::size_t{16} << 10U
                               : std::numeric_limits<std::size_t>::max();
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
                          options.one_shot_bytes
                              ? declared{"one_shot_bytes", *options.one_shot_bytes}
                              : declared{"one_shot_bytes", "as the costs say"},
                          declared{"window_bytes", options.window_bytes.value_or(0)},
                          declared{"algorithm", name_of(options.algorithm)},
                          declared{"may_reorder", options.may_reorder ? "true" : "false"},
                          declared{"hash of costs", options.costs.hash()},
                          declared{"slot_bytes", map.slot_bytes}};
  group.agree("collective::team", values, until, objection);
  return options;
}

}  // namespace peerbus::collective
