// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus::moe {

namespace detail {

/// The `kept_rows` of the memory of a batch.
///
/// Threads: `drop` from any, the rest from one at a time.
class row_keepers {
 public:
  /// Adds one that keeps the rows of dispatch `number`. Returns what `drop` takes.
  std::uint32_t add(std::uint64_t number) noexcept {
    number_ = number;
    // order: relaxed; the caller dispatches next.
    return generation_of(state_.fetch_add(1, std::memory_order_relaxed));
  }
  /// Drops one, unless it was forgotten.
  void drop(std::uint32_t generation) noexcept {
    std::uint64_t now = state_.load(std::memory_order_relaxed);
    // order: release; rows were read before others may write them.
    while (generation_of(now) == generation &&
           !state_.compare_exchange_weak(now, now - 1, std::memory_order_release,
                                         std::memory_order_relaxed)) {
    }
  }
  /// Forgets all, whose rows are void.
  void forget() noexcept {
    std::uint64_t now = state_.load(std::memory_order_relaxed);
    // order: acquire; what was dropped before is read.
    while (!state_.compare_exchange_weak(now, std::uint64_t{generation_of(now) + 1} << 32U,
                                         std::memory_order_acquire, std::memory_order_relaxed)) {
    }
  }
  /// Returns whether there are any. order: acquire; what those that are gone have read is read.
  [[nodiscard]] bool any() const noexcept {
    return static_cast<std::uint32_t>(state_.load(std::memory_order_acquire)) != 0;
  }
  /// Returns the dispatch whose rows they keep.
  [[nodiscard]] std::uint64_t number() const noexcept { return number_; }

 private:
  [[nodiscard]] static std::uint32_t generation_of(std::uint64_t state) noexcept {
    return static_cast<std::uint32_t>(state >> 32U);
  }

  std::atomic<std::uint64_t> state_{0};  ///< the generation, and how many there are of it
  std::uint64_t number_ = 0;
};

}  // namespace detail

/// Keeps the rows of a batch, as long as it lives: `exchange::keep` makes it. Until then all ranks
/// refuse the dispatch that would overwrite them and, in layouts with slots, the combine that
/// would give them up; `refused` names this rank, and the batch can be used further. Of an exchange
/// that relays, its rows can be read, but not combined once a dispatch was refused. A batch that
/// `exchange::resume` makes void is not kept. The object must not outlive the exchange. A
/// moved-from one keeps nothing.
/// Threads: any thread may destroy it, while others use the exchange.
class kept_rows {
 public:
  /// Keeps the rows of dispatch `number`, in the memory of `keepers`, which outlive it.
  kept_rows(detail::row_keepers& keepers, std::uint64_t number) noexcept
      : keepers_{&keepers}, generation_{keepers.add(number)} {}
  ///@{
  /// Takes over what `other` keeps; an assignment drops what was kept before.
  kept_rows(kept_rows&& other) noexcept
      : keepers_{std::exchange(other.keepers_, nullptr)}, generation_{other.generation_} {}
  kept_rows(const kept_rows&) = delete;
  kept_rows& operator=(const kept_rows&) = delete;
  kept_rows& operator=(kept_rows&& other) noexcept {
    kept_rows taken{std::move(other)};
    std::swap(keepers_, taken.keepers_);
    std::swap(generation_, taken.generation_);
    return *this;
  }
  ///@}
  ~kept_rows() {
    if (keepers_ != nullptr) keepers_->drop(generation_);
  }

 private:
  detail::row_keepers* keepers_;
  std::uint32_t generation_;
};

}  // namespace peerbus::moe
