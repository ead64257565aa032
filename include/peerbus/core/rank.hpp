// SPDX-License-Identifier: MIT
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>

namespace peerbus {

/// One member of a communicator, numbered from 0. A type of its own, so that a rank cannot be
/// passed where a count or an offset is meant.
class rank_id {
 public:
  constexpr rank_id() = default;
  constexpr explicit rank_id(std::size_t index) noexcept
      : index_{static_cast<std::uint32_t>(index)} {}

  /// Position in arrays with one element per rank.
  [[nodiscard]] constexpr std::size_t index() const noexcept { return index_; }

  friend constexpr auto operator<=>(rank_id, rank_id) = default;

  /// "rank 3", for messages.
  friend void append_text(std::string& out, rank_id rank) {
    out += "rank ";
    out += std::to_string(rank.index_);
  }

 private:
  std::uint32_t index_ = 0;
};

/// All ranks of a group of `size`, as a range for loops: `for (rank_id peer : all_ranks{n})`.
class all_ranks {
 public:
  constexpr explicit all_ranks(std::size_t size) noexcept : size_{size} {}

  class iterator {
   public:
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

  [[nodiscard]] constexpr iterator begin() const noexcept { return iterator{0}; }
  [[nodiscard]] constexpr iterator end() const noexcept { return iterator{size_}; }

 private:
  std::size_t size_;
};

}  // namespace peerbus
