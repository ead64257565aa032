// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/control/batch.hpp>
#include <peerbus/moe/expert_map.hpp>
#include <peerbus/moe/kept_rows.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/per_batch.hpp>
#include <peerbus/moe/plan/expert_router.hpp>
#include <peerbus/moe/plan/refusal.hpp>
#include <peerbus/moe/plan/row_buffers.hpp>
#include <peerbus/moe/received.hpp>

namespace peerbus::moe::detail {

/// The batch sets of an exchange. Dispatch n uses set n mod in_flight. The class finds the batch of
/// a call. If the batch is not in the state that the call expects, it throws `error`
/// invalid_argument before anything is changed.
class batch_ring {
 public:
  /// Allocates all sets, and buffers for rows of `row_bytes` or of an output. `path` has the needs
  /// of the exchange's path, and `distances` are those of `expert_router`: [ranks].
  batch_ring(const exchange_config& config, const block_geometry& geometry, rank_id rank,
             const std::vector<std::uint32_t>& distances, const row_path_memory& path,
             std::size_t row_bytes);

  /// Returns the memory in which the lanes make rows, one batch after the other.
  [[nodiscard]] const row_buffers& buffers() const noexcept { return buffers_; }
  [[nodiscard]] const expert_map& experts() const noexcept { return router_->map(); }
  /// Returns the router of all batches, which may change only while no dispatch is under way.
  [[nodiscard]] expert_router& router() noexcept { return *router_; }
  /// Calls `peer_checks::accept_relayed` for all batches that have checks.
  void accept_relayed(std::size_t home_ranks, std::size_t tokens) noexcept {
    for (const batch& each : sets_)
      if (each.checks) each.checks->accept_relayed(home_ranks, tokens);
  }
  /// Returns the number of the set of `batch`.
  [[nodiscard]] std::size_t set_of(const batch& this_batch) const noexcept {
    return static_cast<std::size_t>(&this_batch - &*sets_.begin());
  }
  /// Returns the set that dispatch `number` uses. It may hold another dispatch.
  [[nodiscard]] batch& at(std::uint64_t number) noexcept { return sets_.of(number); }
  /// Returns the number of the latest dispatch, or 0 before the first.
  [[nodiscard]] std::uint64_t latest() const noexcept { return latest_; }
  /// Returns the lowest number that a batch in a set may have.
  [[nodiscard]] std::uint64_t oldest() const noexcept {
    return latest_ < sets_.size() ? 1 : latest_ - sets_.size() + 1;
  }

  /// Returns the set for the next dispatch, whose number `latest()` then returns.
  /// Throws: as `require_free`.
  [[nodiscard]] batch& next() {
    require_free(latest_ + 1);
    return at(++latest_);
  }
  /// Uses up the number of the next dispatch, which this rank has refused already.
  void skip() noexcept { ++latest_; }
  /// Sets the number of the next dispatch to `latest` + 1.
  void continue_after(std::uint64_t latest) noexcept { latest_ = latest; }
  /// Checks that dispatch `number` may use its set.
  /// Throws: `error` invalid_argument if the batch there needs its `dispatch_recv` or
  /// `combine_recv`.
  void require_free(std::uint64_t number);
  /// Returns the `kept_rows` of the set that dispatch `number` uses.
  [[nodiscard]] row_keepers& keepers(std::uint64_t number) noexcept {
    return keepers_[sets_.index_of(number)];
  }
  /// Returns the refusal to give up the rows in the set that dispatch `number` uses, if there are
  /// `kept_rows` of it.
  [[nodiscard]] refusal objection_to_reuse(std::uint64_t number) noexcept {
    const row_keepers& found = keepers(number);
    return found.any() ? refuse(refusal_reason::rows_kept, found.number(), 0) : refusal{};
  }
  /// Returns the unfinished batch with the lowest number, if any.
  [[nodiscard]] std::optional<unfinished_batch> unfinished() noexcept;
  /// Forgets the batches of all sets. None of them may be unfinished.
  void forget_all() noexcept;

  /// Returns the batch named by `ticket`, which must have reached at least `least`.
  [[nodiscard]] batch& of(std::string_view doing, const void* exchange, moe::ticket ticket,
                          stage least = stage::counted);
  /// Returns the batch named by `ticket`, which must still need `dispatch_recv`.
  [[nodiscard]] batch& awaiting_rows(const void* exchange, moe::ticket ticket);
  /// Returns the batch whose rows have the ticket `rows`, which must have reached exactly
  /// `expected`.
  [[nodiscard]] batch& behind(std::string_view doing, const void* exchange, moe::ticket rows,
                              stage expected);

 private:
  std::shared_ptr<expert_router> router_;
  per_batch<batch> sets_;
  std::unique_ptr<row_keepers[]> keepers_;  ///< [sets]
  row_buffers buffers_;
  std::uint64_t latest_ = 0;
};

}  // namespace peerbus::moe::detail

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/engine/batch_ring.ipp>  // IWYU pragma: keep
#endif
