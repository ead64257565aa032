// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/collective/detail/enter_view.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::collective {

PEERBUS_INLINE team::team(const origin& comm, const team_options& options, deadline until)
    : options_{agreed_options(comm, options, until)},
      windows_from_{comm.bus},
      pages_{detail::make_page_exchange(
          comm.group, comm.boot, comm.access, comm.make_window,
          map_over(comm.access, comm.group.view().members().size(), options_), until)},
      view_{comm.group.view().number()},
      times_{*pages_},
      private_{*pages_, comm.boot.shares_cores(),
               comm.access == page_access::loads ? options_.private_bytes
                                                 : std::numeric_limits<std::size_t>::max()},
      shape_{map(), comm.access, std::max<std::size_t>(pages_->groups().ranks_per_group(), 1)},
      choice_{choose()} {}

PEERBUS_INLINE detail::algorithm_choice team::choose() const noexcept {
  const page_access access = shape_.access;
  return {shape_,
          costs(),
          {.forced = options_.algorithm,
           .one_shot_bytes = options_.one_shot_bytes,
           .may_reorder = options_.may_reorder,
           .has_trials = access == page_access::loads && !options_.one_shot_bytes &&
                         options_.algorithm == algorithm::automatic &&
                         !detail::has_costs_of(options_.costs, access)}};
}

PEERBUS_INLINE void team::resume(std::optional<deadline> until) {
  auto members = pages_->members_of_view();
  std::array latest{round_, calls_};
  view_ = detail::enter_view(pages_->communicator(), "a team", view_, latest, until);
  // Behind the pages and the handles of all earlier calls.
  round_ = latest[0];
  calls_ = latest[1] + 1;
  pages_->go_on(std::move(members));
  times_.forget();
  private_.forget();
  shape_.map = map();
  choice_ = choose();
  pending_.reset();
}

PEERBUS_INLINE shots_choice team::shots_for(std::size_t bytes) const noexcept {
  using need = detail::algorithm_choice::order_need;
  const algorithm assumed = choice_.of_all_reduce(bytes, need::sources);
  if (!choice_.is_close(bytes)) return {.by = assumed};
  const auto& found = pages_->trials().choice(operation_kind::all_reduce, bytes);
  if (!found.is_measured()) return {.by = assumed};
  return {detail::algorithm_of_way(found.way()), true, found.found(0), found.found(1)};
}

PEERBUS_INLINE team_options team::filled_in(team_options options, page_access access,
                                            std::size_t ranks, bool shares_cores) noexcept {
  const bool loads = access == page_access::loads;
  if (!options.window_bytes)
    options.window_bytes = std::size_t{loads && shares_cores ? 32U : 1U} << 10U;
  if (!options.stream_bytes)
    options.stream_bytes = loads && ranks == 2 && !shares_cores
                               ? std::size_t{16} << 10U
                               : std::numeric_limits<std::size_t>::max();
  return options;
}

PEERBUS_INLINE team_options team::agreed_options(const origin& comm, const team_options& given,
                                                 deadline until) {
  const std::size_t ranks = comm.group.view().members().size();
  team_options options = filled_in(given, comm.access, ranks, comm.boot.shares_cores());
  const team_map map = map_over(comm.access, ranks, options);
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
                              : declared{"one_shot_bytes", "left to the team"},
                          declared{"window_bytes", options.window_bytes.value_or(0)},
                          options.private_bytes ? declared{"private_bytes", *options.private_bytes}
                                                : declared{"private_bytes", "found by trial"},
                          declared{"algorithm", name_of(options.algorithm)},
                          declared{"may_reorder", options.may_reorder ? "true" : "false"},
                          declared{"hash of costs", options.costs.hash()},
                          declared{"slot_bytes", map.slot_bytes}};
  comm.group.agree("collective::team", values, until, objection);
  return options;
}

}  // namespace peerbus::collective
