// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <peerbus/moe/row_block.hpp>

namespace peerbus::deep_ep::detail {

/// The origins of rows grouped by expert: the received tokens, each listed once, with the rows that
/// each token became. The constructor allocates all memory.
class source_metadata {
 public:
  source_metadata(std::size_t rank_count, std::size_t max_tokens, std::size_t top_k)
      : top_k_{top_k},
        numbers_(rank_count * max_tokens),
        ends_(rank_count),
        rows_{std::make_unique_for_overwrite<std::int32_t[]>(numbers_.size() * width())} {}

  /// Returns the number of entries per row of `table`: the token's number among all ranks, source x
  /// top_k + first slot, then the row of each slot.
  [[nodiscard]] std::size_t width() const noexcept { return top_k_ + 2; }

  /// Fills the table for a dispatch of at most `most_tokens` tokens per rank, no more than the
  /// constructor's `max_tokens`. Calls `for_each_row(visit)` twice, which must call `visit(row,
  /// origin)` for every received row.
  template <class ForEachRow>
  void fill(std::size_t most_tokens, ForEachRow&& for_each_row) noexcept {
    most_tokens_ = most_tokens;
    std::fill_n(numbers_.begin(), ends_.size() * most_tokens, -1);
    for_each_row(
        [&](std::size_t, const moe::row_origin& origin) { numbers_[token_of(origin)] = 0; });
    count_ = 0;
    for (std::size_t rank = 0; rank < ends_.size(); ++rank) {
      for (std::size_t t = 0; t < most_tokens; ++t)
        if (std::int32_t& number = numbers_[rank * most_tokens + t]; number == 0)
          begin(number, rank, t);
      ends_[rank] = static_cast<std::int32_t>(count_);
    }
    for_each_row([&](std::size_t row, const moe::row_origin& origin) {
      std::int32_t* const entry = entry_of(numbers_[token_of(origin)]);
      const auto lane = static_cast<std::int32_t>(origin.rank.index() * top_k_ + origin.slot);
      entry[1] = entry[1] == -1 ? lane : std::min(entry[1], lane);
      entry[2 + origin.slot] = static_cast<std::int32_t>(row);
    });
  }

  /// Sets the entries behind the received tokens to -1, up to `capacity()` tokens.
  void clear_rest() noexcept {
    std::fill(rows_.get() + count_ * width(), rows_.get() + capacity() * width(), -1);
  }
  /// Returns the largest number of tokens that the latest dispatch could bring.
  [[nodiscard]] std::size_t capacity() const noexcept { return ends_.size() * most_tokens_; }
  /// Returns the number of received tokens.
  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  /// Returns the table, [count, width], by source rank, then by token.
  [[nodiscard]] std::int32_t* table() const noexcept { return rows_.get(); }
  /// Returns, for each rank r, the number of tokens from ranks 0 to r.
  [[nodiscard]] std::span<std::int32_t> ends() noexcept { return ends_; }

 private:
  [[nodiscard]] std::size_t token_of(const moe::row_origin& origin) const noexcept {
    return origin.rank.index() * most_tokens_ + origin.token;
  }
  [[nodiscard]] std::int32_t* entry_of(std::int32_t number) const noexcept {
    return rows_.get() + static_cast<std::size_t>(number) * width();
  }
  void begin(std::int32_t& number, std::size_t rank, std::size_t t) noexcept {
    number = static_cast<std::int32_t>(count_++);
    std::int32_t* const entry = entry_of(number);
    std::fill_n(entry, width(), -1);
    entry[0] = static_cast<std::int32_t>(rank * most_tokens_ + t);
  }

  std::size_t most_tokens_ = 0;  ///< B, of the latest dispatch
  std::size_t top_k_;
  std::vector<std::int32_t> numbers_;  ///< [R][B]: index among received tokens, or -1
  std::vector<std::int32_t> ends_;
  std::unique_ptr<std::int32_t[]> rows_;
  std::size_t count_ = 0;
};

}  // namespace peerbus::deep_ep::detail
