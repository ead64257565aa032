// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <utility>

#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/control/batch.hpp>
#include <peerbus/moe/control/control_messages.hpp>
#include <peerbus/moe/engine/expert_tables.hpp>
#include <peerbus/moe/engine/set_up.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/plan/check_experts.hpp>
#include <peerbus/moe/protocol.hpp>

namespace peerbus::moe {

template <transport Transport, token_codec Codec, row_layout Layout>
exchange<Transport, Codec, Layout>::exchange(communicator<Transport>& comm,
                                             const exchange_config& config, Codec codec,
                                             Layout layout, std::optional<deadline> until)
    : exchange{comm,
               config,
               codec,
               layout,
               until.value_or(comm.default_deadline()),
               config.relay != moe::relay::never} {}

template <transport Transport, token_codec Codec, row_layout Layout>
exchange<Transport, Codec, Layout>::exchange(communicator<Transport>& comm,
                                             const exchange_config& config, Codec codec,
                                             Layout layout, deadline until, bool finds_groups)
    : comm_{comm}, codec_{codec} {
  const detail::near_groups groups = agree(config, layout, until, finds_groups);
  if (chosen_.relays) {
    if constexpr (partly_direct_transport<Transport>) make_levels(config, layout, groups, until);
  } else if constexpr (peerbus::detail::refinements_of<Transport>().reach) {
    switch (comm.bus().reach()) {
      case peer_reach::all: make_one_level<peer_reach::all>(config, layout, until); break;
      case peer_reach::near: make_one_level<peer_reach::near>(config, layout, until); break;
      case peer_reach::none: make_one_level<peer_reach::none>(config, layout, until); break;
    }
  } else {
    make_one_level<reach_by_type>(config, layout, until);
  }
  choose_engine();
  forget_spans(config_);
  forget_spans(parts_->config);
}

template <transport Transport, token_codec Codec, row_layout Layout>
void exchange<Transport, Codec, Layout>::choose_engine() {
  engine_ = &parts_->core;
  if (relay_) engine_ = relay_.get();
  if (comm_.members()->listeners().any()) engine_ = &reporting_.emplace(*engine_, comm_);
}

template <transport Transport, token_codec Codec, row_layout Layout>
template <peer_reach Reach>
void exchange<Transport, Codec, Layout>::make_one_level(const exchange_config& given,
                                                        const Layout& layout, deadline until) {
  using path = path_over<Reach>;
  const block_geometry geometry = layout.geometry(config_, comm_.size());
  const memory_map map = map_of(config_, geometry, comm_.size(), path::needs);
  auto window = make_window(map.total, detail::control_messages::signals(map, comm_.size()), until);
  window_ = window.get();
  // Where rows are put, stores make no difference that could be told from the network's.
  const auto stores_by = given.stream_from    ? store_reason::configured
                         : path::needs.stages ? store_reason::assumed
                                              : store_reason::measured;
  parts_ = make_parts<path>(
      config_, geometry, map, std::move(window), stores_by, until,
      [&](const detail::exchange_parts& parts) { make_views(config_, geometry, parts); });
}

template <transport Transport, token_codec Codec, row_layout Layout>
detail::near_groups exchange<Transport, Codec, Layout>::agree(const exchange_config& given,
                                                              const Layout& layout, deadline until,
                                                              bool finds_groups) {
  config_ = detail::agreed_config<Codec>(comm_, comm_.bus().boot(), given, layout,
                                         path_name_of(reach_of(comm_.bus())), until);
  config_.experts_of_rank = {};
  if (detail::is_other_than_dealt(given, comm_.size())) {
    experts_of_rank_ = comm_.on_all_ranks("the experts of each rank", until, [&] {
      return detail::experts_of_each(placement_of(given, comm_.size()), comm_.size());
    });
    config_.experts_of_rank = experts_of_rank_;
  }
  std::optional<detail::relay_plan> made;
  if constexpr (partly_direct_transport<Transport>) {
    if (finds_groups && reach_of(comm_.bus()) == peer_reach::near) {
      const auto near = comm_.make_window(1, 0, until);
      detail::near_groups groups = peerbus::detail::find_near_groups(
          comm_, "exchange: near ranks", until,
          [&](rank_id peer) { return !near.find_peer(peer).empty(); });
      const dispatch_protocol slots = given.protocol == dispatch_protocol::automatic
                                          ? dispatch_protocol::one_phase
                                          : given.protocol;
      made = detail::plan_relay(comm_, std::move(groups), given,
                                detail::codec_facts::of<Codec>(given.hidden),
                                detail::layout_facts::of(layout, slots), until);
    }
  }
  if (!made) made = detail::plan_without_groups(comm_, given, until);
  chosen_ = std::move(made->chosen);
  return std::move(made->groups);
}

template <transport Transport, token_codec Codec, row_layout Layout>
auto exchange<Transport, Codec, Layout>::make_window(std::size_t bytes, std::size_t signals,
                                                     deadline until)
    -> std::unique_ptr<any_window_over<Transport>> {
  return std::make_unique<any_window_over<Transport>>(comm_,
                                                      comm_.make_window(bytes, signals, until));
}

template <transport Transport, token_codec Codec, row_layout Layout>
template <class Path, class Also>
std::unique_ptr<detail::exchange_parts> exchange<Transport, Codec, Layout>::make_parts(
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
    auto made = std::make_unique<detail::exchange_parts>(
        this, config, map, std::move(window),
        detail::batch_ring{config, geometry, group.rank(), detail::distances_in(*window),
                           Path::needs, map.format.row_bytes},
        stores_by, make_row_path);
    also(*made);
    return made;
  });
}

template <transport Transport, token_codec Codec, row_layout Layout>
void exchange<Transport, Codec, Layout>::make_views(const exchange_config& config,
                                                    const block_geometry& geometry,
                                                    const detail::exchange_parts& parts) {
  rows_.reserve(config.in_flight);
  const std::size_t experts = parts.batches.experts().count(parts.window->group().rank());
  for (std::size_t set = 0; set < config.in_flight; ++set)
    rows_.emplace_back(config, geometry, experts);
}

template <transport Transport, token_codec Codec, row_layout Layout>
exchange<Transport, Codec, Layout>::~exchange() = default;

template <transport Transport, token_codec Codec, row_layout Layout>
constexpr memory_map exchange<Transport, Codec, Layout>::map_for(const exchange_config& config,
                                                                 std::size_t ranks, Layout layout,
                                                                 peer_reach reach) noexcept {
  exchange_config planned = config;
  const auto codec = detail::codec_facts::of<Codec>(config.hidden);
  if constexpr (automatic_layout<Layout>)
    planned.protocol = detail::chosen_protocol(
        config, detail::full_dispatch(config, codec, path_name_of(reach), ranks,
                                      layout.geometry(config, ranks).copies_per_token));
  return map_of(planned, layout.geometry(planned, ranks), ranks,
                reach == peer_reach::all ? path_over<peer_reach::all>::needs
                                         : path_over<peer_reach::near>::needs);
}

template <transport Transport, token_codec Codec, row_layout Layout>
auto exchange<Transport, Codec, Layout>::dispatch(std::span<const token> tokens,
                                                  const routing& route,
                                                  const dispatch_options& options)
    -> received_type {
  dispatch_options with_deadline = options;
  with_deadline.until = deadline_of(options);
  const moe::ticket ticket = dispatch_send(tokens, route, with_deadline);
  return dispatch_recv(ticket,
                       {.until = with_deadline.until, .as = options.as, .waited = options.waited});
}

template <transport Transport, token_codec Codec, row_layout Layout>
void exchange<Transport, Codec, Layout>::combine(const received_type& rows, std::span<bf16> out,
                                                 const combine_options& options) {
  require_accepted(
      "combine", rows.ticket().number,
      engine().combine(rows.ticket(), {out, options.terms}, options, deadline_of(options)));
}

template <transport Transport, token_codec Codec, row_layout Layout>
moe::ticket exchange<Transport, Codec, Layout>::dispatch_send(std::span<const token> tokens,
                                                              const routing& route,
                                                              const dispatch_options& options) {
  const auto found =
      engine().dispatch_send({tokens, options.attachments}, route, options, deadline_of(options));
  const std::uint64_t number = engine().next_dispatch() - 1;
  require_accepted("dispatch", number, found);
  return {number, this};
}

template <transport Transport, token_codec Codec, row_layout Layout>
auto exchange<Transport, Codec, Layout>::dispatch_recv(moe::ticket ticket,
                                                       const receive_options& options)
    -> received_type {
  const auto keep = [&](const detail::batch& batch) {
    const std::size_t set = parts_->batches.set_of(batch);
    const set_view own_set = parts_->core.local_set(batch);
    arrived_.emplace(rows_[set].of(batch, this, codec_,
                                   {own_set, parts_->path->sets(set), batch.origins(own_set)},
                                   parts_->window->group().rank()));
  };
  require_accepted("dispatch", ticket.number,
                   engine().dispatch_recv(ticket, options, deadline_of(options), keep));
  return *arrived_;
}

template <transport Transport, token_codec Codec, row_layout Layout>
bool exchange<Transport, Codec, Layout>::count_rows(moe::ticket ticket,
                                                    std::span<std::uint32_t> rows) {
  const detail::batch& batch = parts_->core.batch_of("count_rows", ticket, detail::stage::received);
  const expert_map& experts = placement();
  if (rows.size() != experts.physical_experts())
    throw error{errc::invalid_argument,
                peerbus::detail::concat("count_rows: rows has ", rows.size(),
                                        " entries, expected physical experts, ",
                                        experts.physical_experts())};
  // With relay a rank does not learn the counts of other groups.
  const auto of_blocks = relay_ ? std::span<const std::uint32_t>{} : batch.leaving.totals();
  if (!layout_by_rank<Layout> && !of_blocks.empty()) {
    std::copy(of_blocks.begin(), of_blocks.end(), rows.begin());
    return true;
  }
  std::fill(rows.begin(), rows.end(), 0U);
  rows_[parts_->batches.set_of(batch)].count_rows(
      batch.arriving, rows.subspan(experts.first(comm_.rank()), experts.count(comm_.rank())));
  return false;
}

template <transport Transport, token_codec Codec, row_layout Layout>
void exchange<Transport, Codec, Layout>::install_experts(
    std::span<const std::uint32_t> physical_to_logical, const replica_choice& replicas,
    std::optional<deadline> until) {
  const deadline limit = until.value_or(comm_.default_deadline());
  if constexpr (partly_direct_transport<Transport>) {
    if (relay_) relay_->install_experts(physical_to_logical, replicas, limit);
  }
  if (!relay_) parts_->core.install_experts(physical_to_logical, replicas, limit);
  config_.replicas.policy = replicas.policy;
  for (views& each : rows_) each.forget();
}

template <transport Transport, token_codec Codec, row_layout Layout>
void exchange<Transport, Codec, Layout>::combine_send(const received_type& rows,
                                                      const publish_options& options) {
  engine().combine_send(rows.ticket(), options, deadline_of(options));
}

template <transport Transport, token_codec Codec, row_layout Layout>
void exchange<Transport, Codec, Layout>::combine_recv(const received_type& rows,
                                                      std::span<bf16> out,
                                                      const sum_options& options) {
  require_accepted(
      "combine", rows.ticket().number,
      engine().combine_recv(rows.ticket(), {out, options.terms}, options, deadline_of(options)));
}

}  // namespace peerbus::moe
