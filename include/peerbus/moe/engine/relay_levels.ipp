// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <peerbus/communicator/subset_window.hpp>
#include <peerbus/moe/control/control_messages.hpp>
#include <peerbus/moe/engine/exchange_levels.hpp>
#include <peerbus/moe/engine/set_up.hpp>
#include <peerbus/moe/path/direct_row_path.hpp>
#include <peerbus/moe/path/mixed_row_path.hpp>

namespace peerbus::moe::detail {

template <transport Transport, token_codec Codec, row_layout Layout>
void exchange_levels<Transport, Codec, Layout>::make_two_levels(const exchange_config& given,
                                                                const Layout& layout,
                                                                const near_groups& groups,
                                                                deadline until)
  requires partly_direct_transport<Transport>
{
  using far_path = mixed_row_path<Codec>;
  using near_path = direct_row_path<Codec>;
  row_path_memory far_needs = far_path::needs;
  far_needs.sums_are_f32 = config_.relay_sums == relay_sums::f32;
  constexpr row_path_memory near_needs{.outputs_may_be_home = false, .hands_on = true};
  ranks_ = comm_.on_all_ranks("the levels of an exchange", until, [&] {
    return std::make_shared<relay_ranks>(comm_, comm_.bus().boot(), config_, groups,
                                         layout_by_rank<Layout>);
  });
  const std::size_t per_core = ranks_per_core(comm_.bus().boot());
  const auto far_of = [&](std::size_t members) {
    exchange_config far = ranks_->configs(config_, groups, members, groups.own_group).far;
    far.stream_from = stream_from(given, members, per_core);
    return far;
  };
  const auto protocol_of = [&](exchange_config near, std::size_t members) {
    near.protocol = given.protocol;
    near.costs = given.costs;
    return choose_protocol(
        near, only_protocol_of<Layout>,
        full_dispatch(near, codec_facts::of<Codec>(near.hidden), path_name_of(peer_reach::all),
                      members, layout.geometry(near, members).copies_per_token));
  };
  const auto near_of = [&](std::size_t number) {
    exchange_config near = ranks_->configs(config_, groups, 1, number).near;
    const std::size_t members = groups.groups[number].size();
    near.stream_from = stream_from(given, members, per_core);
    near.protocol = protocol_of(near, members).chosen;
    return near;
  };
  // The operations of a level are not timed apart, so that nothing is tried.
  choices_.rule.tries_both = false;
  const store_reason stores_by = choices_.rule.why;
  // All windows have the size of the largest, as ranks make them together.
  const auto make = [&](std::size_t count, auto&& map_of_part) {
    std::size_t bytes = 0;
    std::size_t signals = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const auto [map, members] = map_of_part(i);
      bytes = std::max(bytes, map.total);
      signals = std::max(signals, control_messages::signals(map, members));
    }
    return make_window(bytes, signals, until);
  };
  struct sized {
    memory_map map;
    std::size_t members;
  };
  const auto far_map = [&](std::size_t members) {
    const exchange_config far = far_of(members);
    return map_of(far, rank_major{}.geometry(far, members), members, far_needs);
  };
  const auto near_map = [&](std::size_t number) {
    const exchange_config near = near_of(number);
    const std::size_t members = groups.groups[number].size();
    return map_of(near, layout.geometry(near, members), members, near_needs);
  };

  auto far_window = make(groups.columns(), [&](std::size_t number) {
    const std::size_t members = groups.column(number).size();
    return sized{far_map(members), members};
  });
  auto near_window = make(groups.count(), [&](std::size_t number) {
    return sized{near_map(number), groups.groups[number].size()};
  });
  window_ = near_window.get();
  const exchange_config far = far_of(ranks_->far.size());
  far_ = make_parts<far_path>(
      far, rank_major{}.geometry(far, ranks_->far.size()), far_map(ranks_->far.size()),
      std::make_unique<peerbus::detail::subset_window>(ranks_->far, std::move(far_window)),
      stores_by, until, [&](exchange_parts& parts) {
        parts.batches.router().install(ranks_->far_router(far, ranks_->router));
      });
  const exchange_config near = near_of(groups.own_group);
  const block_geometry near_geometry = layout.geometry(near, ranks_->near.size());
  parts_ = make_parts<near_path>(
      near, near_geometry, near_map(groups.own_group),
      std::make_unique<peerbus::detail::subset_window>(ranks_->near, std::move(near_window)),
      stores_by, until, [&](exchange_parts& parts) {
        make_views(near, near_geometry, parts);
        parts.batches.router().map().rename(ranks_->near_experts(ranks_->router.map()));
        parts.batches.accept_relayed(comm_.size(), config_.max_tokens);
        relay_ = std::make_shared<relay_engine>(
            exchange_, comm_, config_, groups, *ranks_,
            relay_engine::level{ranks_->far, *far_, ranks_->far_physical},
            relay_engine::level{ranks_->near, parts, ranks_->experts[groups.own_group].held});
      });
  config_.protocol = near.protocol;
  choices_.protocol = protocol_of(near, ranks_->near.size());
  choices_.rule.stream_from = *near.stream_from;
}

}  // namespace peerbus::moe::detail
