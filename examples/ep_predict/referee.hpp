// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include <peerbus/transport/simulated/links.hpp>

#include "platform_file.hpp"
#include "prediction.hpp"

namespace ep_predict {

/// A comparison of the platform's ports with links that another simulator computes. It prints, for
/// flows that share nothing and for flows that share cards, how far their times are apart.
class referee {
 public:
  /// The largest difference of times that counts as agreement, if flows share nothing.
  static constexpr double tolerance = 0.05;

  /// Prints a title. Keeps references.
  referee(const platform_file& given, peerbus::simulated_links& links, bool csv);

  /// Compares patterns of puts as long as all rows of a rank's tokens, and the exchange of `batch`:
  /// a line for each.
  /// Throws: as `predict`.
  void compare(const load& batch);
  /// Returns whether all flows so far that share nothing agree.
  [[nodiscard]] bool agrees() const noexcept { return agrees_; }

 private:
  void print(const load& batch, const char* flows, bool is_alone, const times& by_ports,
             const times& by_links);

  const platform_file& given_;
  peerbus::simulated_links& links_;
  bool csv_;
  bool agrees_ = true;
};

}  // namespace ep_predict
