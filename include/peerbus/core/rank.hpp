// SPDX-License-Identifier: MIT
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>

#include <peerbus/core/requirements.hpp>  // IWYU pragma: keep

namespace peerbus {

/// A member of a communicator, numbered from 0. It is a distinct type, so that a rank cannot be
/// passed where a count or an offset is expected.
class rank_id {
 public:
  constexpr rank_id() = default;
  /// Makes the rank with number `index`, which must be below 2^32.
  constexpr explicit rank_id(std::size_t index) noexcept
      : index_{static_cast<std::uint32_t>(index)} {}

  /// Returns the rank's position in arrays with one element per rank.
  [[nodiscard]] constexpr std::size_t index() const noexcept { return index_; }

  friend constexpr auto operator<=>(rank_id, rank_id) = default;

  /// Appends "rank 3", for messages.
  friend void append_text(std::string& out, rank_id rank) {
    out += "rank ";
    out += std::to_string(rank.index_);
  }

 private:
  std::uint32_t index_ = 0;
};

/// A range over the ranks of a group of `size`, for loops: `for (rank_id peer : all_ranks{n})`.
class all_ranks {
 public:
  /// Makes the range of ranks 0 to `size` - 1.
  constexpr explicit all_ranks(std::size_t size) noexcept : size_{size} {}

  /// An iterator that gives ranks by value. It has only the operations that loops need.
  class iterator {
   public:
    /// Makes an iterator at the rank with number `index`.
    constexpr explicit iterator(std::size_t index) noexcept : index_{index} {}
    constexpr rank_id operator*() const noexcept { return rank_id{index_}; }
    constexpr iterator& operator++() noexcept {
      ++index_;
      return *this;
    }
    friend constexpr bool operator==(iterator, iterator) = default;

   private:
    std::size_t index_;
  };

  ///@{
  /// Returns the bounds of the range, for range-based loops.
  [[nodiscard]] constexpr iterator begin() const noexcept { return iterator{0}; }
  [[nodiscard]] constexpr iterator end() const noexcept { return iterator{size_}; }
  ///@}
  /// Returns the number of ranks.
  [[nodiscard]] constexpr std::size_t size() const noexcept { return size_; }
  /// Returns rank `index`, which is below `size()`.
  [[nodiscard]] constexpr rank_id operator[](std::size_t index) const noexcept {
    return rank_id{index};
  }

 private:
  std::size_t size_;
};

}  // namespace peerbus
