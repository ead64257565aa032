// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus::moe {

namespace detail {

/// The number of `kept_rows` that keep the memory of a batch.
///
/// Threads: any thread may call `drop`. One thread at a time may call the other functions.
class row_keepers {
 public:
  /// Adds a keeper of the rows of dispatch `number`. Returns the argument for its `drop`.
  std::uint32_t add(std::uint64_t number) noexcept {
    number_ = number;
    // order: relaxed; the caller dispatches next.
    return generation_of(state_.fetch_add(1, std::memory_order_relaxed));
  }
  /// Removes a keeper, unless `forget` was called since its `add`.
  void drop(std::uint32_t generation) noexcept {
    std::uint64_t now = state_.load(std::memory_order_relaxed);
    // order: release; rows were read before others may write them.
    while (generation_of(now) == generation &&
           !state_.compare_exchange_weak(now, now - 1, std::memory_order_release,
                                         std::memory_order_relaxed)) {
    }
  }
  /// Removes all keepers, because their rows are void.
  void forget() noexcept {
    std::uint64_t now = state_.load(std::memory_order_relaxed);
    // order: acquire; keepers that were dropped before have read their rows.
    while (!state_.compare_exchange_weak(now, std::uint64_t{generation_of(now) + 1} << 32U,
                                         std::memory_order_acquire, std::memory_order_relaxed)) {
    }
  }
  /// Returns whether there are keepers. order: acquire; removed keepers have read their rows.
  [[nodiscard]] bool any() const noexcept {
    return static_cast<std::uint32_t>(state_.load(std::memory_order_acquire)) != 0;
  }
  /// Returns the number of the dispatch whose rows are kept.
  [[nodiscard]] std::uint64_t number() const noexcept { return number_; }

 private:
  [[nodiscard]] static std::uint32_t generation_of(std::uint64_t state) noexcept {
    return static_cast<std::uint32_t>(state >> 32U);
  }

  std::atomic<std::uint64_t> state_{0};  ///< the generation, and the number of its keepers
  std::uint64_t number_ = 0;
};

}  // namespace detail

/// An object that keeps the rows of a batch from being overwritten as long as it lives.
/// `exchange::keep` makes it. All ranks refuse the dispatch that would overwrite the rows and, in
/// layouts with slots, the combine that would give them up. `refused` names this rank, and the
/// batch can be used further. With relay, the rows can still be read, but not combined once a
/// dispatch was refused. A batch that `exchange::resume` makes void is not kept. The object must
/// not outlive the exchange. A moved-from object keeps nothing.
/// Threads: any thread may destroy it, while others use the exchange.
class kept_rows {
 public:
  /// Keeps the rows of dispatch `number` by adding a keeper to `keepers`, which must outlive it.
  kept_rows(detail::row_keepers& keepers, std::uint64_t number) noexcept
      : keepers_{&keepers}, generation_{keepers.add(number)} {}
  ///@{
  /// Takes over the rows that `other` keeps. An assignment drops the rows that this object kept.
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
