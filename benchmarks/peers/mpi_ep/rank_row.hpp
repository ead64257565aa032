// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <peerbus/core/align.hpp>

namespace mpi_ep {

/// One of the experts of a row, counted from the first of the rank, and its weight.
struct row_choice {
  std::int32_t local_expert;  ///< -1: none, and none after it
  float weight;
};

/// A row that travels once per (token, rank): the encoded token, its scales, its choices.
struct rank_row_form {
  std::size_t row_bytes;
  std::size_t scale_bytes;
  std::size_t choices;  ///< that there is room for

  [[nodiscard]] std::size_t stride() const noexcept {
    return peerbus::align_up(row_bytes + scale_bytes + choices * sizeof(row_choice), 16);
  }
  [[nodiscard]] row_choice* choices_at(std::byte* row) const noexcept {
    return reinterpret_cast<row_choice*>(row + row_bytes + scale_bytes);
  }
  [[nodiscard]] std::span<const row_choice> chosen(const std::byte* row) const noexcept {
    const auto* const all = reinterpret_cast<const row_choice*>(row + row_bytes + scale_bytes);
    std::size_t count = 0;
    while (count < choices && all[count].local_expert >= 0) ++count;
    return {all, count};
  }
};

/// The rows of each local expert, by row number in the order of arrival.
struct rank_row_index {
  std::span<const std::uint32_t> starts;  ///< of each expert in `rows`, and the end
  std::span<const std::uint32_t> rows;
};

}  // namespace mpi_ep
