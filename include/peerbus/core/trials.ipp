// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include <peerbus/core/trials.hpp>

namespace peerbus::detail {

PEERBUS_INLINE void measured_choice::decide(std::size_t assumed) noexcept {
  for (const sample& noted : of_way_)
    if (noted.count < most_times / 2) return;
  for (std::size_t way = 0; way < of_way_.size(); ++way) {
    sample& noted = of_way_[way];
    const auto quartile = noted.times.begin() + noted.count / 4;
    std::nth_element(noted.times.begin(), quartile, noted.times.begin() + noted.count);
    found_[way] = static_cast<double>(*quartile);
    noted.count = noted.next = 0;
  }
  // Builtins, because all users would parse <cmath>.
  const double gain = __builtin_log(found_[0] / found_[1]);
  if (!__builtin_isfinite(gain)) return;  // A clock that stood still.
  gain_ = is_measured() ? (gain_ + gain) / 2 : gain;
  way_ = way_by(gain_, is_measured() ? way_ : assumed);
  ++decisions_;
}

}  // namespace peerbus::detail
