// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <cstring>

#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/path/batch_input.hpp>
#include <peerbus/moe/path/copy_targets.hpp>
#include <peerbus/moe/plan/send_plan.hpp>

namespace peerbus::moe {

PEERBUS_INLINE copy_targets::copy_targets(const row_path_batch& batch, std::size_t t,
                                          std::span<const set_view> sets,
                                          rank_id own_rank) noexcept {
  const batch_input& input = batch.input;
  const memory_map& map = sets[own_rank.index()].map();
  const auto places = batch.leaving.places(t);
  for (std::size_t slot = 0; slot < places.size(); ++slot) {
    const row_place& place = places[slot];
    if (!place.sent()) continue;
    const set_view& receiver = sets[place.rank];
    if (!receiver) continue;
    rows_[count_] = receiver.row(place.row);
    scales_[count_++] = receiver.scales(place.row);
    *receiver.origin(place.row) = input.handed_on
                                      ? input.handed_on.origin(t, slot)
                                      : wire_origin{static_cast<std::uint32_t>(t),
                                                    static_cast<std::uint16_t>(own_rank.index()),
                                                    static_cast<std::uint16_t>(slot)};
    if (map.slot_bytes != 0)
      batch.leaving.describe(t, rank_id{place.rank}, receiver.experts(place.row),
                             receiver.weights(place.row));
    for (std::size_t a = 0; a < max_attachments; ++a)
      if (const std::size_t bytes = map.attachment_bytes[a]; bytes != 0)
        std::memcpy(receiver.attachment(a, place.row), input.attached[a].data() + t * bytes, bytes);
  }
}

}  // namespace peerbus::moe
