// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include <peerbus/core/rank.hpp>

namespace peerbus::moe {

// The limits of an exchange that do not depend on its layout. An exchange beyond them is refused.
inline constexpr std::size_t max_ranks = 65'535;
inline constexpr std::size_t max_experts = std::size_t{1} << 24U;
inline constexpr std::size_t max_hidden = std::size_t{1} << 24U;
inline constexpr std::size_t max_top_k = 32;
inline constexpr std::size_t max_attachments = 4;
inline constexpr std::size_t max_in_flight = 16;
/// The limit of ranks x max_tokens x top_k, and of the rows that one rank has room for.
inline constexpr std::size_t max_rows = (std::size_t{1} << 32U) - 1;

/// Where experts leave what combine reads.
enum class outputs_at : std::uint32_t {
  /// At the expert, row behind row, as a grouped GEMM writes them. Room for every row that the
  /// layout has room for: compact, ranks x max_tokens x min(top_k, local experts).
  expert = 0,
  /// At the token's home rank, in the slot (token, k): an expert's store goes straight to the peer,
  /// and combine reads local memory. Room for max_tokens x top_k rows, whatever the number of
  /// ranks. On transports without the memory of all peers, experts write at their own rank all the
  /// same, and combine puts those for far ranks into such slots.
  home = 1
};

/// What an exchange is for; the same on all ranks.
struct exchange_config {
  std::size_t experts = 0;     ///< in the whole group; need not divide by the ranks
  std::size_t hidden = 0;      ///< channels of a token; rows and outputs are whole 16 bytes
  std::size_t top_k = 0;       ///< expert slots of a token, 1 to `max_top_k`
  std::size_t max_tokens = 0;  ///< the most tokens that one rank dispatches at once
  std::size_t in_flight = 1;   ///< batches between dispatch and combine at once, to `max_in_flight`
  outputs_at outputs = outputs_at::expert;
  /// Bytes per token of further tensors that travel with the tokens as they are (scales of tokens
  /// that are quantised already, positions), each a multiple of 4. 0: none.
  std::array<std::size_t, max_attachments> attachments{};
  /// Bytes that may travel home beside each output as they are (gradients of weights, statistics of
  /// an expert), a multiple of 4: `row_block::output_attachment`. 0: none.
  std::size_t output_attachment = 0;
  /// Bytes that a rank may send to all others with its counts, the same to each: what a dispatch
  /// says of the whole batch (`dispatch_options::note`). 0: none.
  std::size_t note_bytes = 0;
  /// Logical expert of each physical one: [experts], each expert once, physical experts being
  /// numbered through the ranks as `expert_placement` deals them out. Empty: expert e is physical
  /// expert e. The caller's memory, read by the constructor of the exchange only (`expert_map`).
  std::span<const std::uint32_t> physical_to_logical{};
};

/// Deals out experts to ranks: consecutive ones, the first `experts % ranks` ranks one more
/// than the others. With fewer experts than ranks, the last ranks hold none.
class expert_placement {
 public:
  constexpr expert_placement(std::size_t experts, std::size_t ranks) noexcept
      : experts_{experts}, least_{experts / ranks}, larger_{experts % ranks} {}

  [[nodiscard]] constexpr std::size_t experts() const noexcept { return experts_; }
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
  std::size_t experts_;
  std::size_t least_;
  std::size_t larger_;
};

}  // namespace peerbus::moe
