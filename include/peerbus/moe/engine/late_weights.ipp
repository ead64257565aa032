// SPDX-License-Identifier: MIT
#pragma once

#include <cstring>

#include <peerbus/moe/engine/exchange_core.hpp>
#include <peerbus/moe/plan/send_plan.hpp>

namespace peerbus::moe::detail {

PEERBUS_INLINE void exchange_core::send_weights(ticket rows, std::span<const float> weights,
                                                bool refuses) {
  const batch& this_batch = parts_.batches.at(rows.number);
  const step this_step = weights_step(this_batch);
  const send_plan& leaving = this_batch.leaving;
  const std::size_t set = parts_.batches.set_of(this_batch);
  const std::size_t top_k = leaving.top_k();
  const set_view own_set = local_set(this_batch);
  const auto write = [&](std::size_t t, std::byte* target) noexcept {
    for (std::size_t k = 0; k < top_k; ++k, target += sizeof(float)) {
      const float weight = weights.empty() ? leaving.weight_of(t, k) : weights[t * top_k + k];
      std::memcpy(target, &weight, sizeof weight);
    }
  };
  std::size_t staged = 0;
  for (const rank_id receiver : group().ranks()) {
    if (refuses) break;
    const set_view there{parts_.map, parts_.window.part(receiver), set};
    // The rows of this rank at the receiver are consecutive.
    const std::size_t first_staged = staged;
    std::size_t first_row = 0;
    for (std::size_t t = 0; t < leaving.tokens(); ++t)
      for (const row_place& place : leaving.places(t)) {
        if (place.rank != receiver.index()) continue;
        if (there) {
          write(t, there.late_weights(place.row));
          continue;
        }
        if (staged == first_staged) first_row = place.row;
        write(t, own_set.leaving_weights(staged++));
      }
    if (staged == first_staged) continue;
    messages_.require(this_step,
                      parts_.window.put(receiver,
                                        set * parts_.map.set_bytes + parts_.map.late_weights +
                                            first_row * parts_.map.late_weight_bytes,
                                        {own_set.leaving_weights(first_staged),
                                         (staged - first_staged) * parts_.map.late_weight_bytes}));
  }
  messages_.announce(this_step);
}

PEERBUS_INLINE void exchange_core::await_weights(ticket rows, deadline until,
                                                 std::span<std::int64_t> waited) {
  messages_.await_all(weights_step(parts_.batches.at(rows.number)), until, {}, waited);
}

}  // namespace peerbus::moe::detail
