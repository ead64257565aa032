// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <peerbus/codec/concept.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/row_run.hpp>

namespace peerbus::moe {

/// The rows of one block: consecutive rows of all source ranks, ordered by source rank, then by
/// token, with the memory for their outputs. A view, valid as long as `row_run` states.
template <token_codec Codec>
class row_block : public row_run<Codec> {
 public:
  /// Makes the view. `recv_plan` has the first row from each source rank, then the row after the
  /// last row. The number that follows the span in memory is the first row of the next block.
  row_block(Codec codec, row_memory memory, std::span<const std::uint32_t> recv_plan) noexcept
      : row_run<Codec>{codec, memory, &recv_plan.front(), &recv_plan.back()},
        arrivals_{recv_plan} {}

  /// Returns the number of rows up to the next block: the rows that arrived and the gap after them.
  [[nodiscard]] std::size_t padded_count() const noexcept {
    return *(arrivals_.data() + arrivals_.size()) - this->first_row();
  }
  /// Returns the number of rows that came from `source`. Rows are in the order of source ranks.
  [[nodiscard]] std::size_t count_from(rank_id source) const noexcept {
    return arrivals_[source.index() + 1] - arrivals_[source.index()];
  }

 private:
  std::span<const std::uint32_t> arrivals_;
};

}  // namespace peerbus::moe
