// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <peerbus/codec/concept.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/moe/batch_columns.hpp>
#include <peerbus/moe/received.hpp>
#include <peerbus/moe/row_block.hpp>

namespace peerbus::cann {

/// The rows that a dispatch brought to this rank, in the operators' layout: by local expert, then
/// by source rank, then by token. A is the number of received rows. The operators' own tensors
/// instead have room for the largest number of rows that may arrive.
///
/// A view, cheap to copy. All its memory belongs to the `moe_distribute` that returned it and is
/// valid until the `in_flight`th next dispatch of that object. The caller may write `expert_out`
/// until combine, but not after a successful combine, because other ranks may still read it.
template <token_codec Codec>
struct dispatch_result {
  std::span<const typename Codec::element> expand_x;  ///< [A, H]
  std::span<const float> dynamic_scales;  ///< [A] if rows are quantised, otherwise empty
  /// [A, 3]: source rank, index of the token on that rank, and slot of the token: k, or K + the
  /// number of the shared expert. The operators' expandIdx, or assistInfoForCombine.
  std::span<const std::int32_t> expand_idx;
  /// [local experts]: the number of rows of each expert. If expert_token_nums_type is 0, the number
  /// of rows of the expert and all experts before it.
  std::span<const std::int64_t> expert_token_nums;
  /// [local experts x ranks], by local expert, then by source rank: prefix sums of the number of
  /// rows. The operators' epSendCounts of combine.
  std::span<const std::int32_t> ep_recv_counts;
  std::span<bf16> expert_out;  ///< [A, H]: the experts may write their outputs here

  /// The received rows, for `combine`; numbers of experts as in deployment.hpp.
  moe::received<Codec> rows;
};

namespace detail {

/// The arrays of one dispatch's result that the exchange does not hold. The constructor allocates
/// all memory.
class result_arrays {
 public:
  result_arrays(std::size_t local_experts, std::size_t rank_count, std::size_t most_rows)
      : nums_(local_experts), counts_(local_experts * rank_count) {
    origins_.reserve(3 * most_rows);
  }

  /// Fills the arrays from the received rows and returns the result. If `sums`, expert_token_nums
  /// are prefix sums.
  template <token_codec Codec>
  dispatch_result<Codec> publish(const moe::received<Codec>& rows, std::size_t hidden,
                                 bool sums) noexcept {
    const std::size_t ranks = counts_.size() / nums_.size();
    origins_.clear();
    std::int32_t so_far = 0;
    for (std::size_t e = 0; e < nums_.size(); ++e) {
      const moe::row_block<Codec>& block = rows.experts()[e];
      const std::span counts = std::span{counts_}.subspan(e * ranks, ranks);
      std::ranges::fill(counts, 0);
      for (std::size_t i = 0; i < block.count(); ++i) {
        const moe::row_origin origin = block.origin(i);
        ++counts[origin.rank.index()];
        origins_.push_back(static_cast<std::int32_t>(origin.rank.index()));
        origins_.push_back(static_cast<std::int32_t>(origin.token));
        origins_.push_back(static_cast<std::int32_t>(origin.slot));
      }
      for (std::int32_t& count : counts) count = so_far += count;
      nums_[e] = sums ? so_far : static_cast<std::int64_t>(block.count());
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
