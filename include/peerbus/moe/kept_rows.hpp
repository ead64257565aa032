// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus::moe {

/// Keeps the rows of a batch, as long as it lives: `exchange::keep` makes it. Until then all ranks
/// refuse the dispatch that would overwrite them and, in layouts with slots, the combine that
/// would give them up; `refused` names this rank, and the batch can be used further. A batch that
/// `exchange::resume` makes void is not kept. The object must not outlive the exchange. A
/// moved-from one keeps nothing.
/// Threads: any thread may destroy it, while others use the exchange.
class kept_rows {
 public:
  /// Counts itself in `*keepers`, which outlives it.
  explicit kept_rows(std::atomic<std::uint32_t>& keepers) noexcept : keepers_{&keepers} {
    keepers.fetch_add(1, std::memory_order_relaxed);  // order: relaxed; the caller dispatches next
  }
  ///@{
  /// Takes over what `other` keeps; an assignment drops what was kept before.
  kept_rows(kept_rows&& other) noexcept : keepers_{std::exchange(other.keepers_, nullptr)} {}
  kept_rows(const kept_rows&) = delete;
  kept_rows& operator=(const kept_rows&) = delete;
  kept_rows& operator=(kept_rows&& other) noexcept {
    kept_rows taken{std::move(other)};
    std::swap(keepers_, taken.keepers_);
    return *this;
  }
  ///@}
  ~kept_rows() {
    // order: release; rows were read before others may write them.
    if (keepers_ != nullptr) keepers_->fetch_sub(1, std::memory_order_release);
  }

 private:
  std::atomic<std::uint32_t>* keepers_;
};

}  // namespace peerbus::moe
