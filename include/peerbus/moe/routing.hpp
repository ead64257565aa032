// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus::moe {

/// The experts of each token and their weights: a view of two arrays [tokens, top_k], row by row.
/// An expert id of -1 marks an empty slot, whose weight is ignored. The experts of one token
/// differ. The caller owns the arrays, and may change them once `dispatch` or `dispatch_send` has
/// returned.
class routing {
 public:
  ///@{
  /// Makes the view: `expert_ids` and `weights` are both [tokens, top_k]. Nothing is checked here;
  /// `dispatch` refuses arrays of other sizes.
  routing(std::span<const std::int32_t> expert_ids, std::span<const float> weights) noexcept
      : narrow_{expert_ids.data()}, size_{expert_ids.size()}, weights_{weights} {}
  routing(std::span<const std::int64_t> expert_ids, std::span<const float> weights) noexcept
      : wide_{expert_ids.data()}, size_{expert_ids.size()}, weights_{weights} {}
  ///@}

  /// Returns the number of slots: tokens x top_k.
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  /// Returns the weights: [tokens, top_k].
  [[nodiscard]] std::span<const float> weights() const noexcept { return weights_; }
  /// Returns the expert id of slot `slot`, numbered token x top_k + k.
  [[nodiscard]] std::int64_t expert(std::size_t slot) const noexcept {
    return wide_ != nullptr ? wide_[slot] : narrow_[slot];
  }
  /// Returns whether there are slots but the pointer to their expert ids is null.
  [[nodiscard]] bool null() const noexcept {
    return size_ != 0 && wide_ == nullptr && narrow_ == nullptr;
  }

 private:
  const std::int32_t* narrow_ = nullptr;
  const std::int64_t* wide_ = nullptr;
  std::size_t size_;
  std::span<const float> weights_;
};

}  // namespace peerbus::moe
