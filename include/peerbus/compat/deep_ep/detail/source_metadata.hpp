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

/// For rows grouped by expert: which tokens came, each once, and which rows each became. All memory
/// is taken at construction.
class source_metadata {
 public:
  source_metadata(std::size_t ranks, std::size_t max_tokens, std::size_t top_k)
      : max_tokens_{max_tokens},
        top_k_{top_k},
        numbers_(ranks * max_tokens),
        ends_(ranks),
        rows_{std::make_unique_for_overwrite<std::int32_t[]>(numbers_.size() * width())} {}

  /// Entries of a row of `table`: global token, source and first slot, then a row per slot.
  [[nodiscard]] std::size_t width() const noexcept { return top_k_ + 2; }

  /// `for_each_row(visit)` calls `visit(row, origin)` for every row that came.
  template <class ForEachRow>
  void fill(ForEachRow&& for_each_row) noexcept {
    std::fill(numbers_.begin(), numbers_.end(), -1);
    for_each_row([&](std::size_t, const moe::row_origin& from) { numbers_[token_of(from)] = 0; });
    count_ = 0;
    for (std::size_t rank = 0; rank < ends_.size(); ++rank) {
      for (std::size_t t = 0; t < max_tokens_; ++t)
        if (std::int32_t& number = numbers_[rank * max_tokens_ + t]; number == 0)
          begin(number, rank, t);
      ends_[rank] = static_cast<std::int32_t>(count_);
    }
    for_each_row([&](std::size_t row, const moe::row_origin& from) {
      std::int32_t* const entry = entry_of(numbers_[token_of(from)]);
      const auto lane = static_cast<std::int32_t>(from.rank.index() * top_k_ + from.slot);
      entry[1] = entry[1] == -1 ? lane : std::min(entry[1], lane);
      entry[2 + from.slot] = static_cast<std::int32_t>(row);
    });
  }

  /// How many tokens came.
  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  [[nodiscard]] std::int32_t* table() const noexcept { return rows_.get(); }
  /// Tokens from ranks 0 to r.
  [[nodiscard]] std::span<std::int32_t> ends() noexcept { return ends_; }

 private:
  [[nodiscard]] std::size_t token_of(const moe::row_origin& from) const noexcept {
    return from.rank.index() * max_tokens_ + from.token;
  }
  [[nodiscard]] std::int32_t* entry_of(std::int32_t number) const noexcept {
    return rows_.get() + static_cast<std::size_t>(number) * width();
  }
  void begin(std::int32_t& number, std::size_t rank, std::size_t t) noexcept {
    number = static_cast<std::int32_t>(count_++);
    std::int32_t* const entry = entry_of(number);
    std::fill_n(entry, width(), -1);
    entry[0] = static_cast<std::int32_t>(rank * max_tokens_ + t);
  }

  std::size_t max_tokens_;
  std::size_t top_k_;
  std::vector<std::int32_t> numbers_;  ///< [R][B]: the token's number among those that came, or -1
  std::vector<std::int32_t> ends_;
  std::unique_ptr<std::int32_t[]> rows_;
  std::size_t count_ = 0;
};

}  // namespace peerbus::deep_ep::detail
