// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace peerbus::moe {

/// Which experts each token goes to and with what weight: a view of two arrays [tokens, top_k], row
/// by row, that stays the caller's and is read during `dispatch` only. An id of -1 means no expert
/// in that slot; its weight is not read. Within a token, experts differ.
class routing {
 public:
  routing(std::span<const std::int32_t> experts, std::span<const float> weights) noexcept
      : narrow_{experts.data()}, size_{experts.size()}, weights_{weights} {}
  routing(std::span<const std::int64_t> experts, std::span<const float> weights) noexcept
      : wide_{experts.data()}, size_{experts.size()}, weights_{weights} {}

  /// Number of slots: tokens x top_k.
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::span<const float> weights() const noexcept { return weights_; }
  [[nodiscard]] std::int64_t expert(std::size_t slot) const noexcept {
    return wide_ != nullptr ? wide_[slot] : narrow_[slot];
  }
  /// Whether it claims slots but points nowhere.
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
