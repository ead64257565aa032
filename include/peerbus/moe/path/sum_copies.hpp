// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <span>

#include <peerbus/core/bf16.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/function_ref.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/combine_terms.hpp>
#include <peerbus/moe/lane.hpp>
#include <peerbus/moe/path/row_path_batch.hpp>
#include <peerbus/moe/set_view.hpp>

namespace peerbus::moe {

/// The result of a combine and its optional inputs.
struct combine_sum {
  std::span<bf16> out;  ///< [tokens, hidden]
  combine_terms terms;  ///< weights, biases and local rows; each may be empty
  /// A function that returns whether the outputs of a rank are LogFMT-10 rows, with their heads in
  /// the attachments of the outputs. Empty: none are.
  std::optional<peerbus::detail::function_ref<bool(rank_id)>> is_coded{};
  /// Weights of the local rows in `terms`, [tokens, slots], where copies are not slots. Local rows
  /// are then added after the biases, in the order of slots. Empty: copies are slots.
  std::span<const float> local_weights{};
  /// The result in f32, [tokens, hidden], in place of `out`. Empty: the result is rounded to `out`.
  std::span<float> f32_out{};
};

/// Sums the outputs of the copies of each token of `batch` in the share of `caller`. out[t] = the
/// biases, then the sum over the copies of token t, in order, of factor times output, in f32. All
/// paths use this function, so that the arithmetic of combine is the same for all.
///
/// An output that is coded is decoded to bf16 first. If the map has outputs of f32, they are sums
/// with the factor 1, which are added as they are.
///
/// `sets` are the sets of the batch at all ranks: [ranks]. The set of `own_rank` is not empty. If
/// the map has outputs at home, they lie in that set. Otherwise the output of a copy lies at the
/// rank of its expert, if the set of that rank is not empty, and else in `returned` at home.
void sum_copies(const row_path_batch& batch, std::span<const set_view> sets, rank_id own_rank,
                const combine_sum& sum, lane caller) noexcept;

}  // namespace peerbus::moe

#ifndef PEERBUS_COMPILED
#include <peerbus/moe/path/sum_copies.ipp>  // IWYU pragma: keep
#endif
