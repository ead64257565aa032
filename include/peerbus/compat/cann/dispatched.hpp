// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <peerbus/codec/concept.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/batch_columns.hpp>
#include <peerbus/moe/received.hpp>
#include <peerbus/moe/row_block.hpp>

namespace peerbus::cann {

/// What a dispatch brought to this rank, in the operators' layout: rows by local expert, then by
/// source rank, then by token. A is the number of rows that came, where the operators are given
/// tensors for the most that may come.
///
/// A view, cheap to copy. All of it lives in memory of the `moe_distribute` that returned it, and
/// is valid until that one's `in_flight`th next dispatch. `expert_out` is the caller's to write
/// until combine; never after a combine that went well, as other ranks may still read it.
template <token_codec Codec>
struct dispatch_result {
  std::span<const typename Codec::element> expand_x;  ///< [A, H]
  std::span<const float> dynamic_scales;              ///< [A] if quantised, else empty
  /// [A, 3]: source rank, token there, and which of its slots: k, or K + the shared expert's
  /// number. The operators' expandIdx, or assistInfoForCombine.
  std::span<const std::int32_t> expand_idx;
  /// [local experts]: rows of each, or, for expert_token_nums_type 0, of it and those before.
  std::span<const std::int64_t> expert_token_nums;
  /// [local experts x ranks]: rows of a local expert from a source rank and all before, by local
  /// expert, then by source rank. Combine's epSendCounts.
  std::span<const std::int32_t> ep_recv_counts;
  std::span<bf16> expert_out;  ///< [A, H]: where the experts may write for combine

  moe::received<Codec> rows;  ///< for `combine`; numbers experts as deployment.hpp does
};

namespace detail {

/// The arrays of a result that the exchange does not hold, for one dispatch. All memory is taken at
/// construction.
class result_arrays {
 public:
  result_arrays(std::size_t local_experts, std::size_t ranks, std::size_t most_rows)
      : nums_(local_experts), counts_(local_experts * ranks) {
    origins_.reserve(3 * most_rows);
  }

  /// Fills them from what came. `sums`: whether expert_token_nums are prefix sums.
  template <token_codec Codec>
  dispatch_result<Codec> publish(const moe::received<Codec>& rows, std::size_t hidden,
                                 bool sums) noexcept {
    const std::size_t ranks = counts_.size() / nums_.size();
    origins_.clear();
    std::int32_t so_far = 0;
    for (std::size_t e = 0; e < nums_.size(); ++e) {
      const moe::row_block<Codec>& block = rows.experts()[e];
      for (std::size_t r = 0; r < ranks; ++r) {
        so_far += static_cast<std::int32_t>(block.count_from(rank_id{r}));
        counts_[e * ranks + r] = so_far;
      }
      nums_[e] = sums ? so_far : static_cast<std::int64_t>(block.count());
      for (std::size_t i = 0; i < block.count(); ++i) {
        const moe::row_origin from = block.origin(i);
        origins_.push_back(static_cast<std::int32_t>(from.rank.index()));
        origins_.push_back(static_cast<std::int32_t>(from.token));
        origins_.push_back(static_cast<std::int32_t>(from.slot));
      }
    }
    const moe::batch_columns<Codec> columns = rows.columns();
    const std::size_t scales = Codec::scale_bytes(hidden) == 0 ? 0 : rows.rows();
    return {.expand_x = rows.all_rows(),
            .dynamic_scales = columns.template scales<float>().first(scales),
            .expand_idx = origins_,
            .expert_token_nums = nums_,
            .ep_recv_counts = counts_,
            .expert_out = columns.outputs().first(rows.rows() * hidden),
            .rows = rows};
  }

 private:
  std::vector<std::int64_t> nums_;
  std::vector<std::int32_t> counts_;
  std::vector<std::int32_t> origins_;
};

}  // namespace detail

}  // namespace peerbus::cann
