// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstring>

#include <peerbus/core/text.hpp>
#include <peerbus/moe/engine/relay_engine.hpp>

namespace peerbus::moe::detail {

PEERBUS_INLINE std::uint64_t relay_engine::attached_in_group(ticket rows) {
  std::uint64_t attached = 0;
  for (const rank_id rank : near_.group->ranks())
    if (near_.core().attached_by(rows, rank)) attached |= std::uint64_t{1} << rank.index();
  return attached;
}

PEERBUS_INLINE void relay_engine::hand_attachments(ticket rows, std::uint64_t attached,
                                                   lane caller) noexcept {
  const std::size_t bytes = config_.output_attachment;
  const std::size_t set = rows.number % config_.in_flight;
  const send_plan& handed = near_.parts->batches.at(rows.number).leaving;
  const auto near_sets = near_.parts->path->sets(set);
  const auto far_sets = far_.parts->path->sets(set);
  const set_view own_set = set_of(far_, rows.number);
  const wire_origin* const origins = far_.parts->batches.at(rows.number).origins(own_set);
  const lane::range share = caller.share(handed.tokens());
  for (std::size_t t = share.begin; t < share.end; ++t) {
    const wire_origin& origin = origins[t];
    const set_view& home = far_sets[origin.rank];
    std::byte* const target =
        home ? home.returned_attachment(origin.token, origin.slot) : own_set.output_attachment(t);
    const auto places = handed.places(t);
    for (std::size_t i = 0; i < places.size(); ++i) {
      if (!places[i].sent() || (attached >> places[i].rank & 1U) == 0) continue;
      std::memcpy(target + i * bytes, near_sets[places[i].rank].output_attachment(places[i].row),
                  bytes);
    }
  }
}

PEERBUS_INLINE bool relay_engine::attached_by(ticket named, rank_id rank) {
  const rank_place& place = rank_places_[rank.index()];
  const std::uint64_t attached = far_.core().brought_by(named, place.group_sums);
  return attachments_return() && (attached >> place.in_group & 1U) != 0;
}

PEERBUS_INLINE std::byte* relay_engine::returned_attachment(ticket named, std::size_t t,
                                                            std::size_t copy) {
  const batch& this_batch = far_.core().batch_of("returned_attachment", named, stage::returned);
  const send_plan& leaving = this_batch.leaving;
  const bool by_rank = near_.parts->batches.at(named.number).leaving.geometry().by_rank;
  // The ranks of the token in ascending order, or the one that has slot `copy`.
  std::array<rank_id, max_top_k> owners;
  std::size_t count = 0;
  for (std::size_t k = 0; k < leaving.top_k(); ++k) {
    if (!leaving.names_expert(t, k) || (!by_rank && k != copy)) continue;
    const rank_id owner = ranks_->owner(leaving.physical_of(t, k));
    const auto end = owners.begin() + static_cast<std::ptrdiff_t>(count);
    const auto place = std::lower_bound(owners.begin(), end, owner);
    if (place != end && *place == owner) continue;
    std::move_backward(place, end, end + 1);
    *place = owner;
    ++count;
  }
  const std::size_t number = by_rank ? copy : 0;
  if (number >= count)
    throw error{errc::invalid_argument,
                peerbus::detail::concat("returned_attachment was given copy ", copy, " of token ",
                                        t, ", expected one that was sent")};
  // Its place among the copies within its group, and the copy that crossed for the group.
  const auto group_of = [&](rank_id rank) { return rank_places_[rank.index()].group_sums; };
  const rank_id representative = group_of(owners[number]);
  std::size_t in_group = copy;
  if (by_rank)
    in_group = static_cast<std::size_t>(
        std::count_if(owners.begin(), owners.begin() + static_cast<std::ptrdiff_t>(number),
                      [&](rank_id rank) { return group_of(rank) == representative; }));
  const auto places = leaving.places(t);
  std::size_t crossed = 0;
  while (places[crossed].rank != representative.index()) ++crossed;
  return set_of(far_, named.number).returned_attachment(t, crossed) +
         in_group * config_.output_attachment;
}

}  // namespace peerbus::moe::detail
