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

/// A `row_path` without its type, so that the operations of an exchange are compiled once for all
/// paths. `held_row_path` calls the functions of the path itself.
class any_row_path {
 public:
  any_row_path() = default;
  any_row_path(const any_row_path&) = delete;
  any_row_path& operator=(const any_row_path&) = delete;
  virtual ~any_row_path() = default;

  ///@{
  /// A member of the concept `row_path`, which states its contract.
  [[nodiscard]] virtual std::span<const set_view> sets(std::size_t set) const noexcept = 0;
  [[nodiscard]] virtual errc send(const row_path_batch& batch, lane caller, lane_meeting meet) = 0;
  [[nodiscard]] virtual errc publish(const row_path_batch& batch, lane caller,
                                     lane_meeting meet) = 0;
  [[nodiscard]] virtual errc settle() noexcept = 0;
  [[nodiscard]] virtual errc sum(const row_path_batch& batch, const combine_sum& wanted,
                                 lane caller) const noexcept = 0;
  ///@}
};

/// A path of a known type, as an `any_row_path`.
template <row_path Path>
class held_row_path final : public any_row_path {
 public:
  /// Makes the path from the arguments of its constructor.
  template <class... Args>
  explicit held_row_path(Args&&... args) : path_{std::forward<Args>(args)...} {}

  [[nodiscard]] std::span<const set_view> sets(std::size_t set) const noexcept override {
    return path_.sets(set);
  }
  [[nodiscard]] errc send(const row_path_batch& batch, lane caller, lane_meeting meet) override {
    return path_.send(batch, caller, meet);
  }
  [[nodiscard]] errc publish(const row_path_batch& batch, lane caller, lane_meeting meet) override {
    return path_.publish(batch, caller, meet);
  }
  [[nodiscard]] errc settle() noexcept override { return path_.settle(); }
  [[nodiscard]] errc sum(const row_path_batch& batch, const combine_sum& wanted,
                         lane caller) const noexcept override {
    return path_.sum(batch, wanted, caller);
  }

 private:
  Path path_;
};

}  // namespace peerbus::moe
