// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/moe/config.hpp>
#include <peerbus/moe/control/store_trials.hpp>

namespace peerbus::moe::detail {

PEERBUS_INLINE batch_stores store_trials::begin(std::uint64_t number, std::size_t bytes) noexcept {
  if (by_ != store_reason::measured) return {.stream_from = stream_from_};
  const auto limit_for = [](store_kind kind) {
    return kind == store_kind::streaming ? 0 : never_stream;
  };
  const auto turn = trials_.at(number);
  if (turn.is_trial) {
    const auto kind = static_cast<store_kind>(turn.way);
    return {.stream_from = limit_for(kind),
            .timed = bytes != 0 && turn.is_timed,
            .kind = kind,
            .size_class = class_of(bytes)};
  }
  peerbus::detail::measured_choice& of_size = classes_[class_of(bytes)];
  if (turn.may_decide) of_size.decide(static_cast<std::size_t>(assumed(bytes)));
  return {.stream_from = of_size.is_measured() ? limit_for(static_cast<store_kind>(of_size.way()))
                                               : stream_from_};
}

PEERBUS_INLINE void store_trials::add(const batch_stores& batch) noexcept {
  classes_[batch.size_class].add(static_cast<std::size_t>(batch.kind), batch.us_per_token);
}

PEERBUS_INLINE store_choice store_trials::choice(std::size_t bytes) const noexcept {
  const peerbus::detail::measured_choice& of_size = classes_[class_of(bytes)];
  if (!of_size.is_measured())
    return {.kind = assumed(bytes),
            .why = by_ == store_reason::configured ? by_ : store_reason::assumed};
  return {.kind = static_cast<store_kind>(of_size.way()),
          .why = store_reason::measured,
          .plain_us = of_size.found(0),
          .streaming_us = of_size.found(1)};
}

}  // namespace peerbus::moe::detail
