// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <peerbus/core/align.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/rank.hpp>

namespace peerbus::moe {

inline constexpr std::size_t max_top_k = 32;

/// What an exchange is for; the same on all ranks.
struct exchange_config {
  std::size_t experts = 0;     ///< in the whole group; need not divide by the ranks
  std::size_t hidden = 0;      ///< channels of a token; a row on the wire is a multiple of 16 bytes
  std::size_t top_k = 0;       ///< expert slots of a token, 1 to `max_top_k`
  std::size_t max_tokens = 0;  ///< the most tokens that one rank dispatches at once
};

/// Which rank holds which experts: consecutive ones, the first `experts % ranks` ranks one more
/// than the others. With fewer experts than ranks, the last ranks hold none.
class expert_placement {
 public:
  constexpr expert_placement(std::size_t experts, std::size_t ranks) noexcept
      : least_{experts / ranks}, larger_{experts % ranks} {}

  [[nodiscard]] constexpr std::size_t first(rank_id rank) const noexcept {
    return rank.index() * least_ + std::min(rank.index(), larger_);
  }
  [[nodiscard]] constexpr std::size_t count(rank_id rank) const noexcept {
    return least_ + (rank.index() < larger_ ? 1 : 0);
  }
  [[nodiscard]] constexpr rank_id owner(std::size_t expert) const noexcept {
    const std::size_t in_larger = larger_ * (least_ + 1);
    return rank_id{expert < in_larger ? expert / (least_ + 1)
                                      : larger_ + (expert - in_larger) / least_};
  }
  /// The most experts that one rank holds.
  [[nodiscard]] constexpr std::size_t most() const noexcept {
    return least_ + (larger_ > 0 ? 1 : 0);
  }

 private:
  std::size_t least_;
  std::size_t larger_;
};

/// Bytes of one row of tokens on the wire, as the codec has it.
struct row_format {
  std::size_t row_bytes = 0;
  std::size_t scale_bytes = 0;
};

/// Whether rows are written where they are read (direct transports) or pass through registered
/// staging memory of their sender (all others).
enum class road { direct, staged };

/// Where everything lies in one rank's part of an exchange's window, in bytes from its start, and
/// how large that is. Exact: the exchange allocates `total` and touches no more. Rows are counted
/// for the worst case, in which every rank sends all it may to this one; memory that no row reaches
/// is never touched.
struct exchange_layout {
  /// Space before the expert counts in a count message, for the sender's refusal.
  static constexpr std::size_t header_bytes = cache_line_bytes;

  std::size_t row_capacity;    ///< rows that can arrive in one dispatch
  std::size_t message_bytes;   ///< one count message: header, then a uint32 per expert
  std::size_t counts;          ///< [2][ranks] count messages
  std::size_t refusals;        ///< [2][ranks] refusals of combine, a cache line each
  std::size_t rows;            ///< [row_capacity][row_bytes]
  std::size_t scales;          ///< [row_capacity][scale_bytes]
  std::size_t origins;         ///< [row_capacity] uint32, the token's index at its home rank
  std::size_t outputs;         ///< [row_capacity][hidden] bf16
  std::size_t staged_rows;     ///< [max_tokens][row_bytes], staged road only
  std::size_t staged_scales;   ///< [max_tokens][scale_bytes], staged road only
  std::size_t staged_origins;  ///< [max_tokens] uint32, staged road only
  std::size_t returned;        ///< [max_tokens][top_k][hidden] bf16, staged road only
  std::size_t total;

  constexpr exchange_layout(const exchange_config& config, std::size_t ranks, row_format format,
                            road way) noexcept
      : row_capacity{ranks * config.max_tokens *
                     std::min(config.top_k, expert_placement{config.experts, ranks}.most())},
        message_bytes{
            align_up(header_bytes + config.experts * sizeof(std::uint32_t), cache_line_bytes)} {
    const std::size_t staged_tokens = way == road::staged ? config.max_tokens : 0;
    std::size_t end = 0;
    const auto place = [&end](std::size_t bytes) {
      const std::size_t at = end;
      end = align_up(end + bytes, cache_line_bytes);
      return at;
    };
    counts = place(2 * ranks * message_bytes);
    refusals = place(2 * ranks * cache_line_bytes);
    rows = place(row_capacity * format.row_bytes);
    scales = place(row_capacity * format.scale_bytes);
    origins = place(row_capacity * sizeof(std::uint32_t));
    outputs = place(row_capacity * config.hidden * sizeof(bf16));
    staged_rows = place(staged_tokens * format.row_bytes);
    staged_scales = place(staged_tokens * format.scale_bytes);
    staged_origins = place(staged_tokens * sizeof(std::uint32_t));
    returned = place(staged_tokens * config.top_k * config.hidden * sizeof(bf16));
    total = end;
  }

  struct component {
    std::string_view name;
    std::size_t bytes;
  };
  /// The same by component, for people who ask where the memory goes. Sums to `total`.
  [[nodiscard]] constexpr std::array<component, 6> components() const noexcept {
    return {{{"counts", rows - counts},
             {"rows", scales - rows},
             {"scales", origins - scales},
             {"origins", outputs - origins},
             {"outputs", staged_rows - outputs},
             {"staging", total - staged_rows}}};
  }
};

/// Bytes that each (token, expert) pair moves in dispatch and in combine: what bandwidths of this
/// library are computed from.
constexpr std::size_t dispatch_bytes_per_row(row_format format) noexcept {
  return format.row_bytes + format.scale_bytes + sizeof(std::uint32_t);
}
constexpr std::size_t combine_bytes_per_row(std::size_t hidden) noexcept {
  return hidden * sizeof(bf16);
}

}  // namespace peerbus::moe
