// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include <peerbus/transport/simulated/platform.hpp>

#include "prediction.hpp"

namespace ep_predict {

/// A comparison of the aggregated model with the simulation of all ranks, which prints how far
/// their times are apart.
class model_check {
 public:
  ///@{
  /// The largest difference of median times that counts as agreement: if the model samples all
  /// ranks, and if it does not.
  static constexpr double tolerance_of_all = 0.01;
  static constexpr double tolerance_of_some = 0.05;
  ///@}

  /// Prints a title. `samples` is as for `predict_aggregated`. Keeps references.
  model_check(const work& own, const peerbus::simulated_platform& platform, std::size_t samples);

  /// Predicts a load by both models and prints a line.
  void compare(const load& batch);
  /// Returns whether all loads so far agree.
  [[nodiscard]] bool agrees() const noexcept { return agrees_; }

 private:
  const work& own_;
  const peerbus::simulated_platform& platform_;
  std::size_t samples_;
  bool agrees_ = true;
};

}  // namespace ep_predict
