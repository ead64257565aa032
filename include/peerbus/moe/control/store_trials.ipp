// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>

#include <peerbus/moe/config.hpp>
#include <peerbus/moe/control/store_trials.hpp>

namespace peerbus::moe::detail {

PEERBUS_INLINE batch_stores store_trials::begin(std::uint64_t number, std::size_t bytes) noexcept {
  if (by_ != store_reason::measured) return {.stream_from = stream_from_};
  while (number >= trial_begin_ + trial_size() + gap_) {
    trial_begin_ += trial_size() + gap_;
    gap_ = std::min(2 * gap_ + 1, most_gap);
    streams_first_ = !streams_first_;
  }
  const auto limit_for = [](store_kind kind) {
    return kind == store_kind::streaming ? 0 : never_stream;
  };
  if (number >= trial_begin_ && number < trial_begin_ + trial_size()) {
    const std::uint64_t lap = (number - trial_begin_) / lap_size();
    const bool is_second = lap % 4 == 1 || lap % 4 == 2;
    const store_kind kind = is_second != streams_first_ ? store_kind::streaming : store_kind::plain;
    return {.stream_from = limit_for(kind),
            .timed = bytes != 0 && (number - trial_begin_) % lap_size() >= skipped_,
            .kind = kind,
            .size_class = class_of(bytes)};
  }
  size_class& sizes = classes_[class_of(bytes)];
  // With several batches in flight, the last of a trial end after the next has begun.
  if (number >= trial_begin_ + trial_size() + skipped_) decide(sizes, bytes);
  return {.stream_from = sizes.measured ? limit_for(sizes.kind) : stream_from_};
}

PEERBUS_INLINE void store_trials::add(const batch_stores& batch) noexcept {
  sample& noted = classes_[batch.size_class].of_kind[static_cast<std::size_t>(batch.kind)];
  noted.times[noted.next] = batch.us_per_token;
  noted.next = static_cast<std::uint8_t>((noted.next + 1U) % most_times);
  noted.count = static_cast<std::uint8_t>(std::min<std::size_t>(noted.count + 1U, most_times));
}

PEERBUS_INLINE void store_trials::decide(size_class& sizes, std::size_t bytes) const noexcept {
  for (const sample& noted : sizes.of_kind)
    if (noted.count < most_times / 2) return;
  for (std::size_t kind = 0; kind < sizes.of_kind.size(); ++kind) {
    sample& noted = sizes.of_kind[kind];
    const auto quartile = noted.times.begin() + noted.count / 4;
    std::nth_element(noted.times.begin(), quartile, noted.times.begin() + noted.count);
    sizes.found[kind] = *quartile;
    noted.count = noted.next = 0;
  }
  const double gain = std::log(sizes.found[0] / sizes.found[1]);
  if (!std::isfinite(gain)) return;  // A clock that stood still.
  if (!sizes.measured) sizes.kind = assumed(bytes);
  sizes.gain = sizes.measured ? (sizes.gain + gain) / 2 : gain;
  if (std::abs(sizes.gain) > least_gain)
    sizes.kind = sizes.gain > 0 ? store_kind::streaming : store_kind::plain;
  sizes.measured = true;
}

PEERBUS_INLINE store_choice store_trials::choice(std::size_t bytes) const noexcept {
  const size_class& sizes = classes_[class_of(bytes)];
  if (!sizes.measured)
    return {.kind = assumed(bytes),
            .why = by_ == store_reason::configured ? by_ : store_reason::assumed};
  return {.kind = sizes.kind,
          .why = store_reason::measured,
          .plain_us = sizes.found[0],
          .streaming_us = sizes.found[1]};
}

}  // namespace peerbus::moe::detail
