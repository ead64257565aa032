// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/detail/two_levels.hpp>

namespace peerbus::moe::detail {

template <partly_direct_transport Transport, token_codec Codec, row_layout Layout>
two_levels<Transport, Codec, Layout>::two_levels(communicator<Transport>& comm,
                                                 const exchange_config& config,
                                                 const expert_map& experts, const group_grid& grid,
                                                 Codec codec, Layout layout, deadline until)
    : comm_{&comm},
      hidden_{config.hidden},
      top_k_{config.top_k},
      attachments_{config.attachments},
      note_bytes_{config.note_bytes},
      handed_note_bytes_{handed_note_bytes(config)},
      notes_(grid.largest_column() * handed_note_bytes_),
      note_places_(comm.size()),
      states_{std::vector<batch_state>(config.in_flight)} {
  std::vector<std::vector<std::uint32_t>> held;
  std::size_t most = 0;
  held.reserve(grid.groups.size());
  for (const auto& group : grid.groups) {
    held.push_back(experts_of(experts, group));
    most = std::max(most, held.back().size());
  }
  const std::size_t columns = grid.columns();
  for (std::size_t number = 0; number < columns; ++number) {
    const auto ranks = grid.column(number);
    for (std::size_t i = 0; i < ranks.size(); ++i)
      note_places_[ranks[i].index()] = {rank_id{number}, i};
  }
  const auto column = grid.column(grid.own_place % columns);
  // The experts of the places of each rank of the column. Numbers beyond `config.experts` are those
  // of places without expert.
  std::vector<std::uint32_t> places;
  places.reserve(column.size() * most);
  auto without_expert = static_cast<std::uint32_t>(config.experts);
  const auto group_of = grid.group_of_each();
  for (std::size_t i = 0; i < column.size(); ++i) {
    // The first rank of each group represents it.
    const std::size_t group = group_of[column[i].index()];
    if (i == 0 || group_of[column[i - 1].index()] != group)
      places.insert(places.end(), held[group].begin(), held[group].end());
    while (places.size() < (i + 1) * most) places.push_back(without_expert++);
  }
  const auto& own_experts = held[grid.own_group];
  level_configs levels = configs_of_levels(config, grid, column.size(), most, own_experts.size());
  levels.far.physical_to_logical = places;
  far_ = comm.collective_on_all_ranks("two_level_exchange: the level between groups", until, [&] {
    return std::make_unique<far_level>("the ranks of a column of all groups", comm, column,
                                       levels.far, codec, rank_major{}, until);
  });
  hand_on::experts(far_->rows).limit(config.experts);
  near_ = comm.collective_on_all_ranks("two_level_exchange: the level within groups", until, [&] {
    return std::make_unique<near_level>("the ranks of a group", comm, grid.near(), levels.near,
                                        codec, layout, until);
  });
  hand_on::experts(near_->rows).rename(own_experts);
}

}  // namespace peerbus::moe::detail
