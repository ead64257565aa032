// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "prediction.hpp"

namespace ep_predict {

/// The order in which each rank visits the others, which is that of `load::visit_groups_of`.
class visit_order {
 public:
  explicit visit_order(const load& batch) noexcept
      : ranks_{batch.ranks},
        group_{batch.visit_groups_of > 1 && batch.ranks % batch.visit_groups_of == 0
                   ? batch.visit_groups_of
                   : batch.ranks} {}

  /// Returns how many ranks `own` visits before `peer`, which is another rank.
  [[nodiscard]] std::size_t position(std::size_t own, std::size_t peer) const noexcept {
    const std::size_t groups = ranks_ / group_;
    const std::size_t group = (groups + peer / group_ - own / group_) % groups;
    return group * group_ + (group_ + peer % group_ - own % group_) % group_ - 1;
  }
  /// Returns the rank that `own` visits after `position` others.
  [[nodiscard]] std::size_t peer(std::size_t own, std::size_t position) const noexcept {
    const std::size_t i = position + 1;
    const std::size_t group = (own / group_ + i / group_) % (ranks_ / group_);
    return group * group_ + (own + i) % group_;
  }

 private:
  std::size_t ranks_;
  std::size_t group_;  ///< all ranks if they are visited in the order of their numbers
};

}  // namespace ep_predict
