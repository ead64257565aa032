// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus::moe {

/// Data that a caller keeps for each batch of an exchange. There are as many entries as batches may
/// be in flight, and they are reused in turn, as the exchange reuses its own memory. Dispatch n
/// reuses the entry of dispatch n - in_flight, whose rows it also replaces. The number of a
/// dispatch is `exchange::next_dispatch` before it and `ticket::number` after it.
template <class T>
class per_batch {
 public:
  /// Takes one entry for each batch in flight, at least one.
  explicit per_batch(std::vector<T> entries) noexcept : entries_{std::move(entries)} {}

  ///@{
  /// Returns the entry of dispatch `number`. Until the caller replaces it, the entry holds the data
  /// of an earlier dispatch.
  [[nodiscard]] T& of(std::uint64_t number) noexcept { return entries_[index_of(number)]; }
  [[nodiscard]] const T& of(std::uint64_t number) const noexcept {
    return entries_[index_of(number)];
  }
  ///@}
  /// Returns the index of the entry of dispatch `number`, below `size()`.
  [[nodiscard]] std::size_t index_of(std::uint64_t number) const noexcept {
    return number % entries_.size();
  }

  /// Returns the number of entries.
  [[nodiscard]] std::size_t size() const noexcept { return entries_.size(); }
  ///@{
  /// Returns the bounds of the entries, for loops over the data of all batches.
  [[nodiscard]] auto begin() const noexcept { return entries_.begin(); }
  [[nodiscard]] auto end() const noexcept { return entries_.end(); }
  ///@}

 private:
  std::vector<T> entries_;
};

}  // namespace peerbus::moe
