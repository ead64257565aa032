// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>

#include <peerbus/moe/config.hpp>
#include <peerbus/moe/control/store_trials.hpp>

namespace peerbus::moe::detail {

PEERBUS_INLINE batch_stores store_trials::begin(std::uint64_t number, std::size_t bytes) noexcept {
  if (by_ != store_reason::measured) return {.stream_from = stream_from_};
  while (number >= trial_begin_ + trial_size() + gap_) {
    trial_begin_ += trial_size() + gap_;
    gap_ = std::min(2 * gap_, most_gap);
  }
  const auto order = [&](store_kind kind, bool timed) {
    return batch_stores{.stream_from = kind == store_kind::streaming ? 0 : never_stream,
                        .timed = timed,
                        .kind = kind,
                        .size_class = static_cast<std::uint8_t>(std::bit_width(bytes))};
  };
  if (number >= trial_begin_ && number < trial_begin_ + trial_size()) {
    const std::uint64_t lap = (number - trial_begin_) / lap_size();
    const bool streams = lap % 4 == 1 || lap % 4 == 2;
    return order(streams ? store_kind::streaming : store_kind::plain,
                 (number - trial_begin_) % lap_size() >= skipped_);
  }
  size_class& sizes = classes_[std::bit_width(bytes)];
  // With several batches in flight, the last of a trial end after the next has begun.
  if (number >= trial_begin_ + trial_size() + skipped_) decide(sizes, bytes);
  return order(kind_for(sizes, bytes), false);
}

PEERBUS_INLINE void store_trials::add(const batch_stores& batch) noexcept {
  sample& noted = classes_[batch.size_class].of_kind[static_cast<std::size_t>(batch.kind)];
  if (noted.count == noted.times.size()) return;
  noted.times[noted.count++] =
      std::chrono::duration_cast<std::chrono::duration<float, std::micro>>(batch.spent).count();
}

PEERBUS_INLINE void store_trials::decide(size_class& sizes, std::size_t bytes) const noexcept {
  auto& [plain, streaming] = sizes.of_kind;
  if (plain.count == 0 && streaming.count == 0) return;
  // A size of which the trial saw little waits for the next.
  if (std::min(plain.count, streaming.count) >= most_times / 2) {
    for (std::size_t kind = 0; kind < sizes.of_kind.size(); ++kind) {
      sample& noted = sizes.of_kind[kind];
      const auto quartile = noted.times.begin() + noted.count / 4;
      std::nth_element(noted.times.begin(), quartile, noted.times.begin() + noted.count);
      sizes.found[kind] = *quartile;
    }
    const double gain = std::log(double{sizes.found[0]} / double{sizes.found[1]});
    if (std::isfinite(gain)) {
      const store_kind before = kind_for(sizes, bytes);
      sizes.gain = sizes.measured ? (sizes.gain + gain) / 2 : gain;
      sizes.kind = before;
      if (std::abs(sizes.gain) > least_gain)
        sizes.kind = sizes.gain > 0 ? store_kind::streaming : store_kind::plain;
      sizes.measured = true;
    }
  }
  plain.count = streaming.count = 0;
}

PEERBUS_INLINE store_choice store_trials::choice(std::size_t bytes) const noexcept {
  const size_class& sizes = classes_[std::bit_width(bytes)];
  if (!sizes.measured)
    return {.kind = bytes >= stream_from_ ? store_kind::streaming : store_kind::plain,
            .why = by_ == store_reason::configured ? by_ : store_reason::assumed};
  return {.kind = sizes.kind,
          .why = store_reason::measured,
          .plain_us = sizes.found[0],
          .streaming_us = sizes.found[1]};
}

}  // namespace peerbus::moe::detail
