// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <utility>

#include <peerbus/communicator/near_groups.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/control/control_messages.hpp>
#include <peerbus/moe/engine/exchange_levels.hpp>
#include <peerbus/moe/engine/expert_tables.hpp>
#include <peerbus/moe/engine/learned_stores.hpp>
#include <peerbus/moe/engine/set_up.hpp>
#include <peerbus/moe/plan/check_experts.hpp>
#include <peerbus/moe/protocol.hpp>

namespace peerbus::moe::detail {

/// Drops what the caller may free after construction.
inline void forget_spans(exchange_config& config) noexcept {
  config.physical_to_logical = {};
  config.replicas = {.policy = config.replicas.policy};
}

template <transport Transport, token_codec Codec, row_layout Layout>
exchange_levels<Transport, Codec, Layout>::exchange_levels(const void* exchange,
                                                           communicator<Transport>& comm,
                                                           const exchange_config& given,
                                                           const Codec& codec, const Layout& layout,
                                                           deadline until, bool finds_groups)
    : exchange_{exchange}, comm_{comm}, codec_{codec} {
  const near_groups groups = agree(given, layout, until, finds_groups);
  if (choices_.relay.relays) {
    if constexpr (partly_direct_transport<Transport>) make_two_levels(given, layout, groups, until);
  } else if constexpr (peerbus::detail::refinements_of<Transport>().reach) {
    switch (comm.bus().reach()) {
      case peer_reach::all: make_one_level<peer_reach::all>(given, layout, until); break;
      case peer_reach::near: make_one_level<peer_reach::near>(given, layout, until); break;
      case peer_reach::none: make_one_level<peer_reach::none>(given, layout, until); break;
    }
  } else {
    make_one_level<reach_by_type>(given, layout, until);
  }
  forget_spans(config_);
  forget_spans(parts_->config);
}

template <transport Transport, token_codec Codec, row_layout Layout>
template <peer_reach Reach>
void exchange_levels<Transport, Codec, Layout>::make_one_level(const exchange_config& given,
                                                               const Layout& layout,
                                                               deadline until) {
  using path = path_over<Reach>;
  const block_geometry geometry = layout.geometry(config_, comm_.size());
  const memory_map map = map_of(config_, geometry, comm_.size(), path::needs);
  auto window = make_window(map.total, control_messages::signals(map, comm_.size()), until);
  window_ = window.get();
  const auto stores_by = choices_.rule.tries_both ? store_reason::measured : choices_.rule.why;
  parts_ = make_parts<path>(
      config_, geometry, map, std::move(window), stores_by, until, [&](exchange_parts& parts) {
        make_views(config_, geometry, parts);
        if (given.costs != nullptr)
          start_from(parts.core.stores(), *given.costs, parts.core.row_bytes_of(1));
      });
}

template <transport Transport, token_codec Codec, row_layout Layout>
exchange_choices exchange_levels<Transport, Codec, Layout>::choices_for(
    communicator<Transport>& comm, const exchange_config& given, const Layout& layout) {
  const std::size_t ranks = comm.size();
  return choices_in_one_level(
      given, layout_facts::of(layout, only_protocol_of<Layout>),
      full_dispatch(given, codec_facts::of<Codec>(given.hidden), path_name_of(reach_of(comm.bus())),
                    ranks, layout.geometry(given, ranks).copies_per_token),
      ranks, ranks_per_core(comm.bus().boot()));
}

template <transport Transport, token_codec Codec, row_layout Layout>
near_groups exchange_levels<Transport, Codec, Layout>::agree(const exchange_config& given,
                                                             const Layout& layout, deadline until,
                                                             bool finds_groups) {
  choices_ = choices_for(comm_, given, layout);
  config_ = agreed_config<Codec>(comm_, given, layout, choices_, until);
  config_.experts_of_rank = {};
  if (is_other_than_dealt(given, comm_.size())) {
    experts_of_rank_ = comm_.on_all_ranks("the experts of each rank", until, [&] {
      return experts_of_each(placement_of(given, comm_.size()), comm_.size());
    });
    config_.experts_of_rank = experts_of_rank_;
  }
  std::optional<relay_plan> made;
  if constexpr (partly_direct_transport<Transport>) {
    if (finds_groups && reach_of(comm_.bus()) == peer_reach::near) {
      const auto near = comm_.make_window(1, 0, until);
      near_groups groups = peerbus::detail::find_near_groups(
          comm_, "exchange: near ranks", until,
          [&](rank_id peer) { return !near.find_peer(peer).empty(); });
      const dispatch_protocol slots = given.protocol == dispatch_protocol::automatic
                                          ? dispatch_protocol::one_phase
                                          : given.protocol;
      made = plan_relay(comm_, std::move(groups), given, codec_facts::of<Codec>(given.hidden),
                        layout_facts::of(layout, slots), until);
    }
  }
  if (!made) made = plan_without_groups(comm_, given, until);
  choices_.relay = std::move(made->chosen);
  return std::move(made->groups);
}

template <transport Transport, token_codec Codec, row_layout Layout>
auto exchange_levels<Transport, Codec, Layout>::make_window(std::size_t bytes, std::size_t signals,
                                                            deadline until)
    -> std::unique_ptr<any_window_over<Transport>> {
  return std::make_unique<any_window_over<Transport>>(comm_,
                                                      comm_.make_window(bytes, signals, until));
}

template <transport Transport, token_codec Codec, row_layout Layout>
template <class Path, class Also>
std::unique_ptr<exchange_parts> exchange_levels<Transport, Codec, Layout>::make_parts(
    const exchange_config& config, const block_geometry& geometry, const memory_map& map,
    std::unique_ptr<any_window> window, store_reason stores_by, deadline until, Also&& also) {
  // After the window, because making that refuses sizes beyond the machine at once, while plans
  // would first touch their pages.
  return comm_.on_all_ranks("the plans of an exchange's batches", until, [&] {
    const rank_group& group = window->group();
    const auto make_row_path = [&](any_window& over,
                                   const memory_map& places) -> std::unique_ptr<any_row_path> {
      return std::make_unique<held_row_path<Path>>(over, places, codec_);
    };
    auto made = std::make_unique<exchange_parts>(
        exchange_, config, map, std::move(window),
        batch_ring{config, geometry, group.rank(), distances_in(*window), Path::needs,
                   map.format.row_bytes},
        stores_by, make_row_path);
    also(*made);
    return made;
  });
}

template <transport Transport, token_codec Codec, row_layout Layout>
void exchange_levels<Transport, Codec, Layout>::make_views(const exchange_config& config,
                                                           const block_geometry& geometry,
                                                           const exchange_parts& parts) {
  rows_.reserve(config.in_flight);
  const std::size_t experts = parts.batches.experts().count(parts.window->group().rank());
  for (std::size_t set = 0; set < config.in_flight; ++set)
    rows_.emplace_back(config, geometry, experts);
}

template <transport Transport, token_codec Codec, row_layout Layout>
void exchange_levels<Transport, Codec, Layout>::install_experts(
    std::span<const std::uint32_t> physical_to_logical, const replica_choice& replicas,
    deadline until) {
  if constexpr (partly_direct_transport<Transport>) {
    if (relay_) relay_->install_experts(physical_to_logical, replicas, until);
  }
  if (!relay_) parts_->core.install_experts(physical_to_logical, replicas, until);
  config_.replicas.policy = replicas.policy;
  for (views& each : rows_) each.forget();
}

}  // namespace peerbus::moe::detail
