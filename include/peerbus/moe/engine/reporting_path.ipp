// SPDX-License-Identifier: MIT
#pragma once

#include <numeric>

#include <peerbus/bootstrap/detail/reported.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/moe/engine/reporting_path.hpp>

namespace peerbus::moe::detail {

PEERBUS_INLINE std::unique_ptr<any_row_path> reporting_path::over(
    std::unique_ptr<any_row_path> path, const rank_group& group, const memory_map& map,
    batch_ring& batches) {
  if (!group.members()->listeners().any()) return path;
  return std::make_unique<reporting_path>(std::move(path), group, map, batches);
}

PEERBUS_INLINE std::size_t reporting_path::rows_to_others(
    const row_path_batch& batch) const noexcept {
  const auto counts = batch.leaving.counts();
  const auto& blocks = batch.leaving.geometry().blocks;
  const rank_id own = group_->rank();
  const auto sum = [](std::span<const std::uint32_t> some) noexcept {
    return std::accumulate(some.begin(), some.end(), std::size_t{0});
  };
  const std::size_t first = blocks.first(own);
  return sum(counts.first(first)) + sum(counts.subspan(first + blocks.count(own)));
}

PEERBUS_INLINE std::size_t reporting_path::rows_from_others(
    const row_path_batch& batch) const noexcept {
  std::size_t own = 0;
  for (std::size_t block = 0; block < batch.arriving.blocks(); ++block) {
    const auto rows = batch.arriving.from(block, group_->rank());
    own += rows[1] - rows[0];
  }
  return batch.arriving.rows() - own;
}

template <class Work>
errc reporting_path::report(group_wait what, const char* name, const row_path_batch& batch,
                            lane caller, std::size_t rows, std::size_t row_bytes,
                            std::int64_t begun, Work&& work) const {
  what.number = batches_->at(batch.set).number;
  const auto [begin, end] = caller.share(rows);
  return peerbus::detail::reported(group_->members()->listeners(),
                                   {.kind = event_kind::step,
                                    .what = what,
                                    .name = name,
                                    .lane = caller.index,
                                    .begun = begun,
                                    .bytes = (end - begin) * row_bytes},
                                   [&](operation_event& event) { return event.fault = work(); });
}

PEERBUS_INLINE errc reporting_path::send(const row_path_batch& batch, lane caller,
                                         lane_meeting meet) {
  return report({group_operation::dispatch, operation_phase::rows, 0}, "send rows", batch, caller,
                rows_to_others(batch), map_->format.row_bytes + map_->format.scale_bytes, 0,
                [&] { return path_->send(batch, caller, meet); });
}

PEERBUS_INLINE errc reporting_path::publish(const row_path_batch& batch, lane caller,
                                            lane_meeting meet) {
  // Without a staging path, nothing moves before home ranks sum.
  if (batch.order == nullptr) return path_->publish(batch, caller, meet);
  return report({group_operation::combine, operation_phase::outputs, 0}, "publish outputs", batch,
                caller, rows_from_others(batch), map_->output_bytes(), 0,
                [&] { return path_->publish(batch, caller, meet); });
}

PEERBUS_INLINE errc reporting_path::sum(const row_path_batch& batch, const combine_sum& wanted,
                                        lane caller) const noexcept {
  return report({group_operation::combine, operation_phase::outputs, 0}, "sum outputs", batch,
                caller, batch.order == nullptr ? rows_to_others(batch) : 0, map_->output_bytes(),
                // A single lane begins where its wait has ended.
                caller.count == 1 ? operation_event::latest() : 0,
                [&] { return path_->sum(batch, wanted, caller); });
}

}  // namespace peerbus::moe::detail
