// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <peerbus/communicator/any_window.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/virtual_clock.hpp>
#include <peerbus/moe/lane.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/path/any_row_path.hpp>
#include <peerbus/moe/set_view.hpp>

namespace peerbus::moe::detail {

/// A path that calls another path where time is simulated. It charges the rank the time of the rows
/// that the rank stores to near ranks and to itself, and of the outputs that it loads from these
/// ranks. The transport charges the time of puts.
class timed_path final : public any_row_path {
 public:
  /// Returns `path`, or a path that charges time for `path` if the calling thread simulates its
  /// rank and `window` has parts of near ranks. `map` outlives the result.
  [[nodiscard]] static std::unique_ptr<any_row_path> over(std::unique_ptr<any_row_path> path,
                                                          const any_window& window,
                                                          const memory_map& map);

  /// Makes a path that charges time for `path`. Only `over` uses this constructor.
  timed_path(std::unique_ptr<any_row_path> path, const memory_map& map) noexcept
      : path_{std::move(path)}, map_{&map} {}

  [[nodiscard]] std::span<const set_view> sets(std::size_t set) const noexcept override {
    return path_->sets(set);
  }
  [[nodiscard]] PEERBUS_INLINE errc send(const row_path_batch& batch, lane caller,
                                         lane_meeting meet) override;
  [[nodiscard]] errc publish(const row_path_batch& batch, lane caller, lane_meeting meet) override {
    return path_->publish(batch, caller, meet);
  }
  [[nodiscard]] errc settle() noexcept override { return path_->settle(); }
  [[nodiscard]] PEERBUS_INLINE errc sum(const row_path_batch& batch, const combine_sum& wanted,
                                        lane caller) const noexcept override;

 private:
  /// Returns the rows of `row_bytes` that lane `caller` moves to or from its own rank and each near
  /// rank.
  [[nodiscard]] std::vector<peerbus::detail::row_access> near_rows(const row_path_batch& batch,
                                                                   lane caller,
                                                                   std::size_t row_bytes) const;

  std::unique_ptr<any_row_path> path_;
  const memory_map* map_;
};

}  // namespace peerbus::moe::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/engine/timed_path.ipp>  // IWYU pragma: keep
#endif
