// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <peerbus/compat/deep_ep/detail/ids.hpp>
#include <peerbus/compat/deep_ep/detail/pending_operation.hpp>
#include <peerbus/compat/deep_ep/tensor.hpp>
#include <peerbus/moe/config.hpp>

namespace peerbus::deep_ep::detail {

/// Where the tokens of one dispatch go: what its handle keeps.
struct normal_routing {
  std::weak_ptr<const char> buffer;  ///< whose it is
  std::size_t tokens = 0;
  std::size_t listed_experts = 0;      ///< of the model
  std::size_t experts = 0;             ///< that ids count: those of the model, or one per rank
  std::size_t top_k = 0;               ///< slots per token
  bool by_experts = true;              ///< otherwise `ids` are ranks
  std::vector<std::int64_t> ids;       ///< [tokens, top_k]
  std::vector<float> weights;          ///< likewise
  std::vector<std::int32_t> per_rank;  ///< tokens for each rank
  std::vector<std::int32_t> per_expert;
  std::unique_ptr<bool[]> in_rank;  ///< [tokens, ranks]
  std::size_t in_rank_size = 0;

  std::size_t rows = 0;  ///< that come to this rank
  /// The latest dispatch that went this way and is not combined, if any.
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

  /// Fills `in_rank` and `per_rank` from `ids`. Returns: whether all ids are in range; others count
  /// nowhere.
  [[nodiscard]] bool count_ranks(std::size_t ranks) noexcept {
    const moe::expert_placement placement{experts, ranks};
    bool sound = true;
    for (std::size_t t = 0; t < tokens; ++t)
      for (std::size_t k = 0; k < top_k; ++k) {
        const std::int64_t id = ids[t * top_k + k];
        if (id < 0 || id >= static_cast<std::int64_t>(experts)) {
          sound = sound && id == -1;
          continue;
        }
        const std::size_t rank = placement.owner(static_cast<std::size_t>(id)).index();
        bool& there = in_rank[t * ranks + rank];
        if (!there) ++per_rank[rank];
        there = true;
      }
    return sound;
  }
  /// Fills `per_expert` from `ids` that are all in range.
  void count_experts() {
    per_expert.assign(experts, 0);
    for (const std::int64_t id : ids)
      if (id >= 0) ++per_expert[static_cast<std::size_t>(id)];
  }
  /// How many ranks token `t` goes to.
  [[nodiscard]] std::size_t ranks_of(std::size_t t, std::size_t ranks) const noexcept {
    const bool* const row = in_rank.get() + t * ranks;
    return static_cast<std::size_t>(std::count(row, row + ranks, true));
  }
};

/// Copies a [T, K] tensor of ids.
inline void copy_ids(const const_tensor& from, std::span<std::int64_t> to) {
  for_each_id(from, to.size(), [&](std::size_t i, std::int64_t id) { to[i] = id; });
}

/// Routings that handles have let go of, to be used again without taking memory.
class routing_pool {
 public:
  [[nodiscard]] std::shared_ptr<normal_routing> take() {
    for (const auto& one : all_)
      if (one.use_count() == 1) {
        one->latest = {};
        return one;
      }
    all_.push_back(std::make_shared<normal_routing>());
    return all_.back();
  }

 private:
  std::vector<std::shared_ptr<normal_routing>> all_;
};

}  // namespace peerbus::deep_ep::detail
