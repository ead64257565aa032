// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <peerbus/codec/concept.hpp>
#include <peerbus/moe/batch_columns.hpp>
#include <peerbus/moe/received.hpp>
#include <peerbus/moe/row_block.hpp>

namespace peerbus::moe {

/// One use of a row by an expert: the row, and the slot that holds the expert's weight.
struct row_use {
  std::uint32_t row;
  std::uint32_t slot;
  friend bool operator==(const row_use&, const row_use&) = default;
};

/// The uses of all rows, grouped by local expert, in order of rows; [local experts + 1] starts.
struct expert_index {
  std::span<const std::uint32_t> starts;
  std::span<const row_use> uses;
};

/// What one dispatch brought to this rank, rank-major: each token once, with the slots of its
/// experts here. `output(i)` is to hold the sum over those experts of weight times what the expert
/// makes of row `i`, which only the caller can compute; combine adds the ranks' outputs. A view,
/// cheap to copy, valid as its rows are.
template <token_codec Codec>
class received_tokens : public row_block<Codec> {
 public:
  received_tokens(moe::ticket from, const row_block<Codec>& rows,
                  std::span<const std::uint32_t> experts, expert_index index) noexcept
      : row_block<Codec>{rows}, ticket_{from}, experts_{experts}, index_{index} {}

  /// The slots of row `i`: [top_k] numbers of local experts, from 0, or -1 where the slot is empty
  /// or its expert lives elsewhere.
  [[nodiscard]] std::span<const std::int32_t> experts(std::size_t i) const noexcept {
    return slots<std::int32_t>(this->set().experts(this->first_row() + i));
  }
  /// Their weights: [top_k], 0 where the expert is -1.
  [[nodiscard]] std::span<const float> weights(std::size_t i) const noexcept {
    return slots<float>(this->set().weights(this->first_row() + i));
  }

  [[nodiscard]] std::size_t local_experts() const noexcept { return index_.starts.size() - 1; }
  /// Number, within the whole group, of local expert `e`, as routing names it.
  [[nodiscard]] std::size_t expert_id(std::size_t e) const noexcept { return experts_[e]; }
  /// The rows of local expert `e`, in order, each with the slot that names it.
  [[nodiscard]] std::span<const row_use> uses_of(std::size_t e) const noexcept {
    return index_.uses.subspan(index_.starts[e], index_.starts[e + 1] - index_.starts[e]);
  }

  /// The arrays that all rows, and what travels with them, lie in: writable, from row 0 to the
  /// exchange's row capacity.
  [[nodiscard]] batch_columns<Codec> columns() const noexcept {
    return batch_columns<Codec>{this->set()};
  }

  [[nodiscard]] moe::ticket ticket() const noexcept { return ticket_; }

 private:
  template <class T>
  [[nodiscard]] std::span<const T> slots(const std::byte* of_row) const noexcept {
    return {reinterpret_cast<const T*>(of_row), this->set().map().slot_bytes / sizeof(T)};
  }

  moe::ticket ticket_;
  std::span<const std::uint32_t> experts_;
  expert_index index_;
};

}  // namespace peerbus::moe
