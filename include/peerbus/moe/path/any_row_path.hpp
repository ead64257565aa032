// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include <peerbus/core/error.hpp>
#include <peerbus/moe/lane.hpp>
#include <peerbus/moe/path/concept.hpp>
#include <peerbus/moe/path/sum_copies.hpp>
#include <peerbus/moe/set_view.hpp>

namespace peerbus::moe {

/// A `row_road` without its type, so that what an exchange does is compiled once for all roads.
/// `held_road` calls the functions of the road itself.
class any_road {
 public:
  any_road() = default;
  any_road(const any_road&) = delete;
  any_road& operator=(const any_road&) = delete;
  virtual ~any_road() = default;

  ///@{ As the concept states.
  [[nodiscard]] virtual std::span<const set_view> sets(std::size_t set) const noexcept = 0;
  [[nodiscard]] virtual errc send(const road_batch& batch, lane as, lane_meeting meet) = 0;
  [[nodiscard]] virtual errc publish(const road_batch& batch, lane as, lane_meeting meet) = 0;
  [[nodiscard]] virtual errc settle() noexcept = 0;
  [[nodiscard]] virtual errc sum(const road_batch& batch, const combine_sum& wanted,
                                 lane as) const noexcept = 0;
  ///@}
};

/// A road of a known type, as an `any_road`.
template <row_road Road>
class held_road final : public any_road {
 public:
  /// Makes the road from the arguments of its constructor.
  template <class... Args>
  explicit held_road(Args&&... args) : road_{std::forward<Args>(args)...} {}

  [[nodiscard]] std::span<const set_view> sets(std::size_t set) const noexcept override {
    return road_.sets(set);
  }
  [[nodiscard]] errc send(const road_batch& batch, lane as, lane_meeting meet) override {
    return road_.send(batch, as, meet);
  }
  [[nodiscard]] errc publish(const road_batch& batch, lane as, lane_meeting meet) override {
    return road_.publish(batch, as, meet);
  }
  [[nodiscard]] errc settle() noexcept override { return road_.settle(); }
  [[nodiscard]] errc sum(const road_batch& batch, const combine_sum& wanted,
                         lane as) const noexcept override {
    return road_.sum(batch, wanted, as);
  }

 private:
  Road road_;
};

}  // namespace peerbus::moe
