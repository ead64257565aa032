// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <peerbus/communicator/group_view.hpp>
#include <peerbus/core/object_bytes.hpp>
#include <peerbus/moe/engine/exchange_core.hpp>

namespace peerbus::moe::detail {

PEERBUS_INLINE completed_batches exchange_core::resume(lost_experts lost, deadline until) {
  // So that the numbers of a view, which are the values of its signals, are above those of all
  // earlier ones without an agreement, and are easily read in messages.
  constexpr std::uint64_t batches_per_view = 1'000'000'000'000;
  const group_view& view = group().view();
  if (view.number() == view_) {
    require_healthy("resume");
    throw error{errc::invalid_argument,
                peerbus::detail::concat("resume: the exchange is in view ", view_,
                                        " already, expected a later one")};
  }
  group().require_healthy("resume", view.number());
  for (const rank_id rank : group().ranks())
    if (!view.contains(rank)) messages_.forget(rank);
  position_ = agree_on_position(until);
  batch_ring& batches = parts_.batches;
  batches.router().lose(view.gone());
  const std::size_t sets = std::max<std::size_t>(parts_.config.in_flight, 1);  // Never 0.
  const std::uint64_t first = view.number() * batches_per_view;
  for (std::size_t set = 0; set < sets; ++set) {
    batch& this_batch = batches.at(set);
    this_batch.leaving.on_lost(lost);
    carry_over(this_batch, lost);
    if (this_batch.reached == stage::idle) batches.keepers(set).forget();
    this_batch.combines = first;
    this_batch.refused = {};
  }
  // The next dispatch takes the set of the first that is void, and the message after its own.
  const std::size_t generations = 2 * sets;
  batches.continue_after(first + (position_.received_last + generations - first % generations) %
                                     generations);
  skipped_ = batches.latest() - position_.received_last;
  failure_.store(errc::ok, std::memory_order_relaxed);  // order: relaxed; as in `record`.
  view_ = view.number();
  return position_.completed;
}

PEERBUS_INLINE exchange_core::position exchange_core::agree_on_position(deadline until) {
  // Once all have given theirs, none is in an operation of an earlier view.
  position common = position_;
  common.begun_last = parts_.batches.latest() - skipped_;
  const auto given = group().gather_in_view("resume", peerbus::detail::object_bytes(common), until);
  for (std::size_t i = 0; i < given.size(); i += sizeof(position)) {
    position theirs;
    std::memcpy(&theirs, &given[i], sizeof theirs);
    const auto lower = [](std::uint64_t& value, std::uint64_t other) noexcept {
      value = std::min(value, other);
    };
    lower(common.completed.received, theirs.completed.received);
    lower(common.completed.combined, theirs.completed.combined);
    lower(common.reopened, theirs.reopened);
    lower(common.received_last, theirs.received_last);
    common.begun_last = std::max(common.begun_last, theirs.begun_last);
  }
  return common;
}

PEERBUS_INLINE void exchange_core::carry_over(batch& this_batch, lost_experts lost) noexcept {
  const auto is_common = [](std::uint64_t place, std::uint64_t last) noexcept {
    return place != 0 && place <= last;
  };
  // A rank that has begun the dispatch which takes the set next has given up its rows.
  if (!is_common(this_batch.received_as, position_.completed.received) ||
      position_.begun_last >= this_batch.dispatched_as + parts_.config.in_flight)
    return this_batch.forget();
  this_batch.lost = this_batch.leaving.lose(group().view().gone(), lost);
  if (this_batch.reopened_as > position_.reopened) {  // Not by all.
    this_batch.reopened_as = 0;
    this_batch.combined_as = position_.completed.combined;
  }
  if (is_common(this_batch.combined_as, position_.completed.combined)) {
    this_batch.reached = stage::returned;
    return;
  }
  this_batch.combined_as = 0;
  this_batch.reached = stage::received;
}

}  // namespace peerbus::moe::detail
