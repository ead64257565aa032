// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include <peerbus/bootstrap/event_listener.hpp>
#include <peerbus/bootstrap/event_listeners.hpp>
#include <peerbus/communicator/rank_group.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/moe/engine/batch_ring.hpp>
#include <peerbus/moe/lane.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/path/any_row_path.hpp>
#include <peerbus/moe/set_view.hpp>

namespace peerbus::moe::detail {

/// A path that calls another path, and tells the listeners of a group of each step of a lane, with
/// the bytes that the lane moves between ranks.
class reporting_path final : public any_row_path {
 public:
  /// Returns `path`, or a path that reports for it if `group` has listeners. `group`, `map` and
  /// `batches` outlive it.
  [[nodiscard]] static std::unique_ptr<any_row_path> over(std::unique_ptr<any_row_path> path,
                                                          const rank_group& group,
                                                          const memory_map& map,
                                                          batch_ring& batches);

  /// Makes a path that reports for `path` to the listeners of `group`. Only `over` uses this
  /// constructor.
  reporting_path(std::unique_ptr<any_row_path> path, const rank_group& group, const memory_map& map,
                 batch_ring& batches) noexcept
      : path_{std::move(path)}, group_{&group}, map_{&map}, batches_{&batches} {}

  [[nodiscard]] std::span<const set_view> sets(std::size_t set) const noexcept override {
    return path_->sets(set);
  }
  [[nodiscard]] PEERBUS_INLINE errc send(const row_path_batch& batch, lane caller,
                                         lane_meeting meet) override;
  [[nodiscard]] PEERBUS_INLINE errc publish(const row_path_batch& batch, lane caller,
                                            lane_meeting meet) override;
  [[nodiscard]] errc settle() noexcept override { return path_->settle(); }
  [[nodiscard]] PEERBUS_INLINE errc sum(const row_path_batch& batch, const combine_sum& wanted,
                                        lane caller) const noexcept override;

 private:
  /// Does `work` and tells the listeners: it is part `name` of an operation in which all lanes move
  /// `rows` rows of `row_bytes` bytes. `begun` is the time when it began; 0: now.
  template <class Work>
  errc report(group_wait what, const char* name, const row_path_batch& batch, lane caller,
              std::size_t rows, std::size_t row_bytes, std::int64_t begun, Work&& work) const;
  /// Returns the number of rows that this rank sends to other ranks.
  [[nodiscard]] std::size_t rows_to_others(const row_path_batch& batch) const noexcept;
  /// Returns the number of rows that this rank gets from other ranks.
  [[nodiscard]] std::size_t rows_from_others(const row_path_batch& batch) const noexcept;

  std::unique_ptr<any_row_path> path_;
  const rank_group* group_;
  const memory_map* map_;
  batch_ring* batches_;
};

}  // namespace peerbus::moe::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/engine/reporting_path.ipp>  // IWYU pragma: keep
#endif
