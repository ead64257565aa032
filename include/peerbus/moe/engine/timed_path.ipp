// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include <peerbus/moe/engine/timed_path.hpp>
#include <peerbus/moe/path/row_path_batch.hpp>

namespace peerbus::moe::detail {

PEERBUS_INLINE std::unique_ptr<any_row_path> timed_path::over(std::unique_ptr<any_row_path> path,
                                                              const any_window& window,
                                                              const memory_map& map) {
  const rank_group& group = window.group();
  const auto is_near = [&](rank_id peer) { return window.part(peer) != nullptr; };
  if (peerbus::detail::clock_of_thread == nullptr || std::ranges::none_of(group.peers(), is_near))
    return path;
  return std::make_unique<timed_path>(std::move(path), map);
}

PEERBUS_INLINE std::vector<peerbus::detail::row_access> timed_path::near_rows(
    const row_path_batch& batch, lane caller, std::size_t row_bytes) const {
  const auto views = sets(batch.set);
  std::vector<peerbus::detail::row_access> found(views.size());
  const lane::range share = caller.share(batch.leaving.tokens());
  for (std::size_t t = share.begin; t < share.end; ++t)
    for (const row_place& place : batch.leaving.places(t)) {
      if (!place.sent() || !views[place.rank]) continue;
      peerbus::detail::row_access& of_rank = found[place.rank];
      of_rank.memory = views[place.rank].row(0);
      ++of_rank.rows;
      of_rank.bytes += row_bytes;
    }
  std::erase_if(found, [](const auto& of_rank) { return of_rank.rows == 0; });
  return found;
}

PEERBUS_INLINE errc timed_path::send(const row_path_batch& batch, lane caller, lane_meeting meet) {
  const errc sent = path_->send(batch, caller, meet);
  peerbus::detail::clock_of_thread->note_stores(near_rows(batch, caller, map_->row_bytes_in_all()));
  return sent;
}

PEERBUS_INLINE errc timed_path::sum(const row_path_batch& batch, const combine_sum& wanted,
                                    lane caller) const noexcept {
  peerbus::detail::clock_of_thread->note_loads(near_rows(batch, caller, map_->output_bytes()));
  return path_->sum(batch, wanted, caller);
}

}  // namespace peerbus::moe::detail
