// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ep_predict {

/// Ranks that stand for all ranks of a load. Each stands for ranks whose place within a group is
/// its own or the nearest to it, because these have equal neighbours at equal positions.
class sampled_ranks {
 public:
  /// Samples `count` of `ranks` ranks, 1 to `ranks`, spread over the groups and over the places in
  /// them. Groups have `group` consecutive ranks.
  sampled_ranks(std::size_t ranks, std::size_t count, std::size_t group);

  /// Returns the number of sampled ranks.
  [[nodiscard]] std::size_t count() const noexcept { return ranks_.size(); }
  /// Returns the rank of sample `index`.
  [[nodiscard]] std::size_t rank(std::size_t index) const noexcept { return ranks_[index]; }
  /// Returns whether all ranks are sampled. Each then stands for itself only.
  [[nodiscard]] bool are_all() const noexcept { return are_all_; }
  /// Returns the sample that stands for `rank` towards `peer`. Towards other peers another sample
  /// may stand for it, so that a sample's luck is not that of thousands of ranks.
  [[nodiscard]] std::size_t stand_in(std::size_t rank, std::size_t peer) const noexcept;

 private:
  /// The samples for one place in a group, `count` from `first` on in `by_place_`.
  struct place {
    std::uint32_t first;
    std::uint32_t count;
  };

  std::vector<std::size_t> ranks_;
  std::vector<std::uint32_t> by_place_;
  std::vector<place> places_;
  bool are_all_;
};

}  // namespace ep_predict
