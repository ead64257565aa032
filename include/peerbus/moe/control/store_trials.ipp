// SPDX-License-Identifier: MIT
#pragma once

#include <peerbus/moe/config.hpp>
#include <peerbus/moe/control/store_trials.hpp>

namespace peerbus::moe::detail {

PEERBUS_INLINE void store_trials::start_from(std::size_t bytes, double plain_us,
                                             double streaming_us) noexcept {
  if (by_ != store_reason::measured) return;
  const double gain = __builtin_log(plain_us / streaming_us);
  const auto otherwise = static_cast<std::size_t>(by_rule(bytes));
  learned_[class_of(bytes)] = {
      .kind = static_cast<store_kind>(peerbus::detail::measured_choice::way_by(gain, otherwise)),
      .why = store_reason::learned,
      .plain_us = plain_us,
      .streaming_us = streaming_us};
}

PEERBUS_INLINE batch_stores store_trials::begin(std::uint64_t number, std::size_t bytes) noexcept {
  const std::uint8_t size = class_of(bytes);
  dispatched_[size] = true;
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
            .size_class = size};
  }
  peerbus::detail::measured_choice& of_size = classes_[size];
  if (turn.may_decide) of_size.decide(static_cast<std::size_t>(assumed(bytes)));
  if (of_size.is_measured())
    return {.stream_from = limit_for(static_cast<store_kind>(of_size.way()))};
  if (learned_[size].why == store_reason::learned)
    return {.stream_from = limit_for(learned_[size].kind)};
  return {.stream_from = stream_from_};
}

PEERBUS_INLINE void store_trials::add(const batch_stores& batch) noexcept {
  classes_[batch.size_class].add(static_cast<std::size_t>(batch.kind), batch.us_per_token);
}

PEERBUS_INLINE store_choice store_trials::choice(std::size_t bytes) const noexcept {
  const peerbus::detail::measured_choice& of_size = classes_[class_of(bytes)];
  const store_choice& learned = learned_[class_of(bytes)];
  if (!of_size.is_measured())
    return learned.why == store_reason::learned
               ? learned
               : store_choice{.kind = by_rule(bytes),
                              .why = by_ == store_reason::configured ? by_ : store_reason::assumed};
  return {.kind = static_cast<store_kind>(of_size.way()),
          .why = store_reason::measured,
          .plain_us = of_size.found(0),
          .streaming_us = of_size.found(1),
          .trials = of_size.decisions()};
}

PEERBUS_INLINE store_choice store_trials::lasting_choice(std::size_t bytes) const noexcept {
  store_choice found = choice(bytes);
  const double mean = __builtin_sqrt(found.plain_us * found.streaming_us);
  const double factor = __builtin_exp(classes_[class_of(bytes)].gain() / 2);
  found.plain_us = mean * factor;
  found.streaming_us = mean / factor;
  return found;
}

PEERBUS_INLINE std::vector<std::size_t> store_trials::sizes() const {
  std::vector<std::size_t> found;
  // Without the class of empty batches, which use no stores.
  for (std::size_t size = 1; size < class_count; ++size)
    if (dispatched_[size] || learned_[size].why == store_reason::learned)
      found.push_back(std::size_t{1} << (size - 1));
  return found;
}

}  // namespace peerbus::moe::detail
