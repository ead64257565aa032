// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <peerbus/compat/deep_ep/detail/pending_operation.hpp>
#include <peerbus/moe/config.hpp>

namespace peerbus::deep_ep::detail {

/// The routing of one normal dispatch, which its handle keeps: the ranks and experts that each
/// token goes to.
struct normal_routing {
  std::weak_ptr<const char> buffer;  ///< identifies the buffer
  /// The number of the collective call that made the routing. The same on all ranks.
  std::uint64_t number = 0;
  std::size_t tokens = 0;
  std::size_t listed_experts = 0;      ///< experts of the model
  std::size_t experts = 0;             ///< range of `ids`: experts of the model, or one per rank
  std::size_t top_k = 0;               ///< slots per token
  bool by_experts = true;              ///< true: `ids` are experts; false: `ids` are ranks
  std::vector<std::int64_t> ids;       ///< [tokens, top_k]
  std::vector<float> weights;          ///< [tokens, top_k]
  std::vector<std::int32_t> per_rank;  ///< number of tokens for each rank
  std::vector<std::int32_t> per_expert;
  std::unique_ptr<bool[]> in_rank;  ///< [tokens, ranks]
  std::size_t in_rank_size = 0;

  std::size_t bound = 0;  ///< num_max_tokens_per_rank of the dispatch that made it
  std::size_t rows = 0;   ///< number of rows that this rank receives
  std::size_t worst = 0;  ///< num_worst_tokens of the dispatch that made it
  /// The latest dispatch with this routing.
  pending_operation latest;

  void resize(std::size_t ranks) {
    ids.resize(tokens * top_k);
    weights.assign(ids.size(), 0.0F);
    per_rank.assign(ranks, 0);
    if (in_rank_size < tokens * ranks) {
      in_rank_size = tokens * ranks;
      in_rank = std::make_unique<bool[]>(in_rank_size);
    }
    std::fill_n(in_rank.get(), tokens * ranks, false);
  }

  /// Fills `in_rank` and `per_rank` from `ids`. Ids out of range are not counted. Returns whether
  /// every id is -1 or in range.
  [[nodiscard]] bool count_ranks(std::size_t ranks) noexcept {
    const moe::expert_placement placement{experts, ranks};
    bool in_range = true;
    for (std::size_t t = 0; t < tokens; ++t)
      for (std::size_t k = 0; k < top_k; ++k) {
        const std::int64_t id = ids[t * top_k + k];
        if (id < 0 || id >= static_cast<std::int64_t>(experts)) {
          in_range = in_range && id == -1;
          continue;
        }
        const std::size_t rank = placement.owner(static_cast<std::size_t>(id)).index();
        bool& goes_there = in_rank[t * ranks + rank];
        if (!goes_there) ++per_rank[rank];
        goes_there = true;
      }
    return in_range;
  }
  /// Fills `per_expert` from `ids`, which must all be -1 or in range.
  void count_experts() {
    per_expert.assign(experts, 0);
    for (const std::int64_t id : ids)
      if (id >= 0) ++per_expert[static_cast<std::size_t>(id)];
  }
  /// Returns the number of ranks that token `t` goes to.
  [[nodiscard]] std::size_t ranks_of(std::size_t t, std::size_t ranks) const noexcept {
    const bool* const row = in_rank.get() + t * ranks;
    return static_cast<std::size_t>(std::count(row, row + ranks, true));
  }
};

}  // namespace peerbus::deep_ep::detail
