// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace peerbus::moe {

/// What a caller keeps for each batch of an exchange: as many entries as batches may be in flight,
/// used in turns as the exchange uses its own memory. Dispatch n has the entry of dispatch n -
/// in_flight, so an entry is replaced when the rows of its batch are. `exchange::next_dispatch`
/// gives the number of a dispatch ahead of it, `ticket::number` afterwards.
template <class T>
class per_batch {
 public:
  /// `entries` has one for each batch in flight, at least one.
  explicit per_batch(std::vector<T> entries) noexcept : entries_{std::move(entries)} {}

  /// The entry of dispatch `number`, whatever is in it now.
  [[nodiscard]] T& of(std::uint64_t number) noexcept { return entries_[index_of(number)]; }
  [[nodiscard]] const T& of(std::uint64_t number) const noexcept {
    return entries_[index_of(number)];
  }
  /// The place of that entry, below `size()`.
  [[nodiscard]] std::size_t index_of(std::uint64_t number) const noexcept {
    return number % entries_.size();
  }

  [[nodiscard]] std::size_t size() const noexcept { return entries_.size(); }
  [[nodiscard]] auto begin() const noexcept { return entries_.begin(); }
  [[nodiscard]] auto end() const noexcept { return entries_.end(); }

 private:
  std::vector<T> entries_;
};

}  // namespace peerbus::moe
