// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <peerbus/core/compiled.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/memory_map.hpp>

namespace peerbus {
class cost_table;
}  // namespace peerbus

/// @file
/// Relay: an exchange over near and far ranks in which a token crosses the far plane once for each
/// group of near ranks, instead of once for each expert or rank (`exchange_config::relay`).
///
/// With `relay::always` a dispatch has two levels. The place of a rank is its index among the ranks
/// of its group, in ascending order. If the home rank of a token has place p, the token goes once
/// to the rank of place p in each group that holds one of its experts. That rank hands the row on
/// to the ranks of the experts, as it is encoded: no byte changes. Combine takes the same way back.
/// The rank that handed a row on computes the group's sum for it, and the home rank adds the sums
/// of the groups. docs/planes.md draws this. If groups differ in size, and the smallest has m
/// ranks, only the first m ranks of each group hand on, and the token goes to place p modulo m.
///
/// Differences from an exchange in one level:
///
/// - The rows of a block are ordered by the place of the rank that handed on, then by the group of
///   the home rank, then by home rank, then by token. `origin` returns the home rank and token.
///   Numbers of source ranks (`row_block::count_from`, `rows_from`) are places of ranks that handed
///   on.
/// - out[t] = the sum over groups in ascending order of the group's sum, which is the sum over the
///   copies of the token in the group as `exchange` defines it. Each sum, also that of a group, is
///   computed in f32 by fused multiply-add and rounded to bf16 once. With `relay_sums::f32` the
///   sums of groups are not rounded, and take twice the bytes.
/// - `dispatch_recv` also waits until the other ranks of the group call it. `combine_recv` also
///   waits until the ranks of equal place, modulo m, call it. `dispatch_send` with bad input waits
///   for the ranks of equal place only; the `dispatch_send` of the batch `in_flight` later then
///   waits for the group.
/// - Batches must be received in the order in which they were sent. Otherwise `dispatch_recv`
///   throws `error` invalid_argument on that rank. It hands on the rows of its batch; no other call
///   does. `combine_send` does not advance the far level.
/// - A refused dispatch gives up the rows of the dispatch `in_flight` before it.
/// - `combine_terms::weights` and `local` are refused as bad input unless
///   `exchange_config::weights_at_combine` is true. Local rows are added after the biases, in the
///   order of slots, before the sums of the groups. `combine_recv` then also waits for the weights
///   of the ranks of equal place before it sums.
/// - Outputs lie at the expert. `rows_of_blocks` and `resume` throw `error` unsupported.
///   `count_rows` counts the rows of this rank's experts.
/// - If experts have replicas, the home rank chooses among them. The token goes to the groups of
///   the chosen replicas, so that a replica in the group of the home rank saves the crossing. The
///   choice decides which group adds up an output, and thereby the bits of a result.
/// - `returned_attachment` throws `error` invalid_argument for a copy that was not sent, and looks
///   at all slots of its token.
///
/// Groups are the near ranks of the transport, in the order of their lowest ranks. `always` needs a
/// transport with near and far ranks, such as `planes`, and, with output attachments, groups of 64
/// ranks or fewer; otherwise it is refused on all ranks with `unsupported`. A group may hold any
/// number of experts, or none. `automatic` is `always` where `estimate_relay` finds it cheaper and
/// `always` would not be refused, otherwise `never`. `exchange::relay` returns the choice and the
/// reason.
///
/// Cost of `always`, compared with one level: the constructor makes a window that it gives back,
/// and two more agreements. There are two windows for data instead of one. They also hold rows and
/// outputs for groups x max_tokens tokens (if groups differ in size, for the tokens of all ranks of
/// equal place modulo m). The signals and counts that one level sends to all ranks go to
/// (groups - 1) + (ranks of a group - 1) peers. docs/planes.md lists the bytes. Notes travel once
/// more. With the sum of a group go the attachments of as many outputs as a token can have in a
/// group: top_k, or, in layouts by rank, min(top_k, ranks of the largest group).
namespace peerbus::moe {

/// The expected numbers of copies of one token, if its experts are drawn uniformly without
/// replacement, and experts and ranks are divided equally.
struct relay_copies {
  double by_expert = 0;       ///< copies to experts in other groups: K (N - 1) / N
  double by_rank = 0;         ///< copies to different ranks of other groups
  double by_group = 0;        ///< copies to different other groups, which cross with two levels
  double groups_reached = 0;  ///< different groups that hold its experts, its own included
};

/// Returns the expected numbers of copies. With E experts, K of them for each token, R ranks and N
/// groups, and C for binomial coefficients:
///
///     by_expert      = K (N - 1) / N
///     by_rank        = (R - R/N) (1 - C(E - E/R, K) / C(E, K))
///     by_group       = (N - 1) (1 - C(E - E/N, K) / C(E, K))
///     groups_reached = N (1 - C(E - E/N, K) / C(E, K))
constexpr relay_copies expected_copies(std::size_t experts, std::size_t top_k, std::size_t ranks,
                                       std::size_t groups) noexcept {
  if (experts == 0 || ranks == 0 || groups == 0) return {};
  const auto e = static_cast<double>(experts);
  const auto r = static_cast<double>(ranks);
  const auto n = static_cast<double>(groups);
  const std::size_t drawn = std::min(top_k, experts);
  // The probability that at least one of the drawn experts is among `held` of all.
  const auto hits = [&](double held) {
    double misses = 1;
    for (std::size_t i = 0; i < drawn; ++i) {
      const double left = e - static_cast<double>(i);
      misses *= std::max(0.0, left - held) / left;
    }
    return 1 - misses;
  };
  return {.by_expert = static_cast<double>(drawn) * (n - 1) / n,
          .by_rank = (r - r / n) * hits(e / r),
          .by_group = (n - 1) * hits(e / n),
          .groups_reached = n * hits(e / n)};
}

/// The costs by which `estimate_relay` decides.
struct relay_costs {
  double far_byte_ns = 0.08;   ///< ns of a byte that a rank sends to far ranks: 100 Gb/s
  double near_byte_ns = 0.04;  ///< ns of a byte that a core copies to near ranks: 25 GB/s
  double hop_us = 20;          ///< us of the second level's signals in a dispatch and a combine
};

/// Returns the costs of `table` with the names `moe.relay.far_byte_ns`, `moe.relay.near_byte_ns`
/// and `moe.relay.hop_us`. A cost that the table lacks has the value that the library assumes.
relay_costs relay_costs_of(const cost_table& table);

/// The size of a full dispatch and combine, for which a choice between one level and two is made.
struct relay_size {
  std::size_t experts = 0;       ///< experts of the whole group
  std::size_t top_k = 0;         ///< expert slots of a token
  std::size_t ranks = 0;         ///< ranks of the whole group
  std::size_t groups = 0;        ///< groups of near ranks
  std::size_t max_tokens = 0;    ///< the most tokens of a rank
  std::size_t row_bytes = 0;     ///< bytes of a row, its scales and attachments
  std::size_t output_bytes = 0;  ///< bytes of an output
  bool by_rank = false;          ///< true if one level sends a token once for each rank
  /// The largest number of tokens that a rank hands on, divided by groups x max_tokens. It is more
  /// than 1 if groups differ in size, because a rank of the smallest group then serves several
  /// ranks of a larger group.
  double load = 1;
};

/// The comparison of one level with two, for a dispatch and its combine.
struct relay_estimate {
  relay_copies copies{};       ///< expected copies of one token
  double far_bytes_flat = 0;   ///< bytes of a token over the far plane with one level
  double far_bytes_relay = 0;  ///< bytes of a token over the far plane with two levels
  double flat_us = 0;          ///< time of the full batch of a rank, for the differences
  double relay_us = 0;         ///< time of the full batch of a rank, for the differences

  /// Returns whether two levels take less time.
  [[nodiscard]] constexpr bool pays() const noexcept { return relay_us < flat_us; }
};

/// Compares one level with two, for a full batch of every rank:
///
///     far_bytes = copies x (row_bytes + 8 + slots + output_bytes)
///     flat_us   = max_tokens x far_bytes_flat x far_byte_ns / 1000
///     relay_us  = max_tokens x load x (far_bytes_relay x far_byte_ns + near_bytes x near_byte_ns)
///                 / 1000 + hop_us
///     near_bytes = flat copies x row_bytes + groups_reached x (row_bytes + output_bytes)
///
/// `slots` are the 8 x top_k bytes of expert ids and weights that accompany a row in layouts by
/// rank, and always with two levels. `near_bytes` are the bytes that two levels copy in addition:
/// rows that are handed on instead of sent, and the data that passes through the rank that hands
/// on.
constexpr relay_estimate estimate_relay(const relay_size& size,
                                        const relay_costs& costs = {}) noexcept {
  relay_estimate found{.copies =
                           expected_copies(size.experts, size.top_k, size.ranks, size.groups)};
  const auto row = static_cast<double>(size.row_bytes);
  const auto output = static_cast<double>(size.output_bytes);
  const double slots = 8.0 * static_cast<double>(size.top_k);
  const double beside = sizeof(wire_origin);
  const double flat_copies = size.by_rank ? found.copies.by_rank : found.copies.by_expert;
  found.far_bytes_flat = flat_copies * (row + beside + (size.by_rank ? slots : 0) + output);
  found.far_bytes_relay = found.copies.by_group * (row + beside + slots + output);
  const double near_bytes = flat_copies * row + found.copies.groups_reached * (row + output);
  const double kilotokens = static_cast<double>(size.max_tokens) / 1000;
  found.flat_us = kilotokens * found.far_bytes_flat * costs.far_byte_ns;
  found.relay_us =
      kilotokens * size.load *
          (found.far_bytes_relay * costs.far_byte_ns + near_bytes * costs.near_byte_ns) +
      costs.hop_us;
  return found;
}

/// The choice of an exchange between one level and two (`exchange::relay`). It is equal on all
/// ranks.
struct relay_choice {
  relay asked = relay::never;             ///< the choice that the constructor was given
  bool relays = false;                    ///< true if rows cross once for each group
  std::size_t groups = 1;                 ///< groups of near ranks
  std::size_t ranks_per_group = 1;        ///< 0 if groups differ in size
  relay_estimate estimate{};              ///< the estimate of the rule, also if it did not decide
  std::string why{};                      ///< the reason, in words and numbers
  std::vector<std::uint32_t> group_of{};  ///< the group of each rank: [ranks]
};

/// Describes a choice, its reason and the expected numbers, for reports.
std::string describe(const relay_choice& choice);

}  // namespace peerbus::moe

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/relay.ipp>  // IWYU pragma: keep
#endif
