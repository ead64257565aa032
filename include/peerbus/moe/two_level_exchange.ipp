// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <numeric>
#include <string>
#include <utility>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/core/cost_table.hpp>
#include <peerbus/moe/detail/objection.hpp>
#include <peerbus/moe/detail/set_up.hpp>
#include <peerbus/moe/protocol.hpp>
#include <peerbus/moe/two_level_exchange.hpp>

namespace peerbus::moe {

/// The choice and the groups it was made for.
template <partly_direct_transport Transport, token_codec Codec, row_layout Layout>
struct two_level_exchange<Transport, Codec, Layout>::plan {
  plan(communicator<Transport>& comm, const exchange_config& config, relay asked,
       const Layout& layout, deadline until) {
    // The whole configuration is compared and checked first, as by an exchange of one level.
    static_cast<void>(
        detail::agreed_config<Codec>(comm, config, layout, road_name<Transport>, until));
    const auto near = comm.make_window(1, 0, until);
    grid = peerbus::detail::find_near_groups(
        comm, "two_level_exchange: near ranks", until,
        [&](rank_id peer) { return !near.find_peer(peer).empty(); });

    const std::size_t attached =
        std::accumulate(config.attachments.begin(), config.attachments.end(), std::size_t{0});
    const dispatch_protocol slots = config.protocol == dispatch_protocol::automatic
                                        ? dispatch_protocol::one_phase
                                        : config.protocol;
    const std::string obstacle = detail::obstacle_to_relay(
        config, grid, detail::codec_facts::of<Codec>(config.hidden),
        detail::layout_facts::of(layout, slots),
        detail::layout_facts::of(rank_major{}, dispatch_protocol::counts_first));
    chosen = {.asked = asked,
              .relays = asked == relay::always,
              .groups = grid.groups.size(),
              .ranks_per_group = grid.ranks_per_group(),
              .estimate = estimate_relay(
                  {.experts = config.experts,
                   .top_k = config.top_k,
                   .ranks = comm.size(),
                   .groups = grid.groups.size(),
                   .max_tokens = config.max_tokens,
                   .row_bytes = Codec::row_bytes(config.hidden) +
                                Codec::scale_bytes(config.hidden) + attached,
                   .output_bytes = config.hidden * sizeof(bf16),
                   .by_rank = layout_by_rank<Layout>,
                   .load = static_cast<double>(grid.largest_column()) /
                           static_cast<double>(grid.groups.size())},
                  config.costs == nullptr ? relay_costs{} : relay_costs_of(*config.costs)),
              .why = "as asked",
              .group_of = grid.group_of_each()};
    if (asked == relay::automatic) {
      chosen.relays = obstacle.empty() && chosen.estimate.pays();
      if (!obstacle.empty())
        chosen.why = obstacle;
      else
        chosen.why = chosen.relays ? "which takes less time" : "as two take no less time";
    }
    const std::array values{declared{"relay", describe(asked)},
                            declared{"levels", chosen.relays ? 2U : 1U}};
    std::optional<error> objection;
    if (asked == relay::always && !obstacle.empty())
      objection = error{errc::unsupported, "two_level_exchange: relay is always, but " + obstacle};
    comm.agree("two_level_exchange", values, until, objection);
  }

  detail::group_grid grid;
  relay_choice chosen;
};

template <partly_direct_transport Transport, token_codec Codec, row_layout Layout>
two_level_exchange<Transport, Codec, Layout>::two_level_exchange(communicator<Transport>& comm,
                                                                 const exchange_config& config,
                                                                 relay choice, Codec codec,
                                                                 Layout layout,
                                                                 std::optional<deadline> until)
    : two_level_exchange{
          comm,
          config,
          codec,
          layout,
          until.value_or(comm.default_deadline()),
          plan{comm, config, choice, layout, until.value_or(comm.default_deadline())}} {}

template <partly_direct_transport Transport, token_codec Codec, row_layout Layout>
two_level_exchange<Transport, Codec, Layout>::two_level_exchange(communicator<Transport>& comm,
                                                                 const exchange_config& config,
                                                                 Codec codec, Layout layout,
                                                                 deadline until, plan&& made)
    : comm_{&comm}, chosen_{std::move(made.chosen)}, experts_{config, comm.size()} {
  if (chosen_.relays)
    levels_ = std::make_unique<two_levels>(comm, config, experts_, made.grid, codec, layout, until);
  else
    flat_ = std::make_unique<one_level>(comm, config, codec, layout, until);
}

template <partly_direct_transport Transport, token_codec Codec, row_layout Layout>
auto two_level_exchange<Transport, Codec, Layout>::dispatch(std::span<const token> tokens,
                                                            const routing& route,
                                                            const dispatch_options& options)
    -> received_type {
  if (flat_) return flat_->dispatch(tokens, route, options);
  const deadline until = deadline_of(options);
  const moe::ticket ticket = levels_->dispatch_send(tokens, route, options, until);
  return levels_->dispatch_recv(ticket, {.as = options.as, .waited = options.waited}, until);
}

template <partly_direct_transport Transport, token_codec Codec, row_layout Layout>
void two_level_exchange<Transport, Codec, Layout>::combine(const received_type& rows,
                                                           std::span<bf16> out,
                                                           const combine_options& options) {
  if (flat_) return flat_->combine(rows, out, options);
  levels_->combine(rows, out, options, deadline_of(options));
}

template <partly_direct_transport Transport, token_codec Codec, row_layout Layout>
moe::ticket two_level_exchange<Transport, Codec, Layout>::dispatch_send(
    std::span<const token> tokens, const routing& route, const dispatch_options& options) {
  if (flat_) return flat_->dispatch_send(tokens, route, options);
  return levels_->dispatch_send(tokens, route, options, deadline_of(options));
}

template <partly_direct_transport Transport, token_codec Codec, row_layout Layout>
auto two_level_exchange<Transport, Codec, Layout>::dispatch_recv(moe::ticket ticket,
                                                                 const receive_options& options)
    -> received_type {
  if (flat_) return flat_->dispatch_recv(ticket, options);
  return levels_->dispatch_recv(ticket, options, deadline_of(options));
}

template <partly_direct_transport Transport, token_codec Codec, row_layout Layout>
void two_level_exchange<Transport, Codec, Layout>::combine_send(const received_type& rows,
                                                                const publish_options& options) {
  if (flat_) return flat_->combine_send(rows, options);
  levels_->combine_send(rows, options, deadline_of(options));
}

template <partly_direct_transport Transport, token_codec Codec, row_layout Layout>
void two_level_exchange<Transport, Codec, Layout>::combine_recv(const received_type& rows,
                                                                std::span<bf16> out,
                                                                const sum_options& options) {
  if (flat_) return flat_->combine_recv(rows, out, options);
  levels_->combine_recv(rows, out, options, deadline_of(options));
}

}  // namespace peerbus::moe
