// SPDX-License-Identifier: MIT
#include "rank_traffic.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include <peerbus/core/cost_table.hpp>
#include <peerbus/moe/path/row_columns.hpp>
#include <peerbus/moe/protocol.hpp>
#include <peerbus/transport/simulated.hpp>

#include "with_layout.hpp"

namespace ep_predict {

namespace {

namespace moe = peerbus::moe;

/// Returns the protocol that the exchange chooses for the layout `automatic`.
moe::dispatch_protocol protocol_of(const load& batch) {
  const moe::row_format format = format_of(batch);
  const auto row_bytes = static_cast<double>(format.row_bytes + format.scale_bytes);
  return moe::estimate_protocols(peerbus::cost_table{},
                                 {.path = moe::path_name<peerbus::simulated>,
                                  .ranks = batch.ranks,
                                  .rows = static_cast<double>(batch.tokens * batch.top_k),
                                  .row_kib = row_bytes / 1024})
      .cheaper();
}

moe::block_geometry geometry_of(const load& batch) {
  moe::exchange_config config = config_of(batch);
  if (batch.layout == "automatic") config.protocol = protocol_of(batch);
  return with_layout(batch.layout,
                     [&](const auto& layout) { return layout.geometry(config, batch.ranks); });
}

/// The rows of a rank for one block.
struct block_rows {
  std::size_t block;
  std::uint32_t rows;
};

/// Returns the blocks to which `rank` sends rows, in ascending order.
std::vector<block_rows> blocks_of(const load& batch, const moe::block_geometry& geometry,
                                  std::size_t rank) {
  std::vector<std::size_t> of_rows;
  of_rows.reserve(batch.tokens * batch.top_k);
  const moe::expert_placement experts{batch.experts, batch.ranks};
  const auto drawn = even_routing(batch, rank);
  for (std::size_t i = 0; i < drawn.size(); ++i) {
    const auto expert = static_cast<std::size_t>(drawn[i]);
    of_rows.push_back(geometry.by_rank ? experts.owner(expert).index() : expert);
    if (!geometry.by_rank || i % batch.top_k + 1 != batch.top_k) continue;
    // A token is one row for all of its experts at a rank.
    const auto token = of_rows.end() - static_cast<std::ptrdiff_t>(batch.top_k);
    std::sort(token, of_rows.end());
    of_rows.erase(std::unique(token, of_rows.end()), of_rows.end());
  }
  std::ranges::sort(of_rows);
  std::vector<block_rows> blocks;
  blocks.reserve(of_rows.size());
  for (const std::size_t block : of_rows) {
    if (blocks.empty() || blocks.back().block != block) blocks.push_back({block, 0});
    ++blocks.back().rows;
  }
  return blocks;
}

/// The messages to one peer, to which puts are added.
class message_list {
 public:
  explicit message_list(std::vector<put_message>& messages) noexcept : messages_{messages} {}

  void add(std::size_t bytes) {
    if (open_.pieces == most_pieces) leave();
    ++open_.pieces;
    open_.bytes += bytes;
  }
  void leave() {
    if (open_.pieces != 0) messages_.push_back(std::exchange(open_, {}));
  }

 private:
  std::vector<put_message>& messages_;
  put_message open_;
};

}  // namespace

message_sizes::message_sizes(const load& batch)
    : geometry{geometry_of(batch)},
      map{config_of(batch), geometry, batch.ranks, format_of(batch),
          moe::row_path_memory{.stages = true, .outputs_may_be_home = false}},
      has_slots{geometry.has_slots()} {}

rank_traffic::rank_traffic(const load& batch, const message_sizes& sizes, const visit_order& order,
                           std::size_t rank)
    : first_(batch.ranks), rows_(batch.ranks - 1) {
  const moe::block_geometry& geometry = sizes.geometry;
  const std::vector<block_rows> blocks = blocks_of(batch, geometry, rank);
  // The blocks of a receiver, [begin, end) of `blocks`, by its position.
  std::vector<std::pair<std::size_t, std::size_t>> of_peer(batch.ranks - 1);
  for (std::size_t begin = 0, end = 0; begin < blocks.size(); begin = end) {
    const peerbus::rank_id owner = geometry.blocks.owner(blocks[begin].block);
    while (end < blocks.size() && geometry.blocks.owner(blocks[end].block) == owner) ++end;
    if (owner.index() == rank) continue;
    of_peer[order.position(rank, owner.index())] = {begin, end};
  }
  std::mt19937_64 random{batch.seed + rank};
  const double no_row =
      std::pow(1 - static_cast<double>(batch.top_k) / static_cast<double>(batch.experts),
               static_cast<double>(batch.tokens * (batch.ranks - 1)));
  const auto lie_together = [&](std::size_t block, std::size_t next) {
    if (geometry.block_rows != 0) return false;
    const double nothing_between = std::pow(no_row, static_cast<double>(next - block));
    return std::uniform_real_distribution{}(random) < nothing_between;
  };
  const moe::row_columns columns{sizes.map};
  for (std::size_t position = 0; position < of_peer.size(); ++position) {
    message_list list{messages_};
    const auto [begin, end] = of_peer[position];
    for (std::size_t b = begin; b < end;) {
      std::uint32_t run = 0;
      do run += blocks[b++].rows;
      while (b < end && lie_together(blocks[b - 1].block, blocks[b].block));
      for (const moe::row_column& column : columns)
        if (column.packed)
          list.add(run * column.bytes);
        else
          for (std::uint32_t row = 0; row < run; ++row) list.add(column.bytes);
      rows_[position] += run;
    }
    list.leave();
    first_[position + 1] = static_cast<std::uint32_t>(messages_.size());
  }
}

}  // namespace ep_predict
