// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>

#include <peerbus/core/bf16.hpp>
#include <peerbus/kernel/kernel_set.hpp>
#include <peerbus/moe/combine_terms.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/departures.hpp>
#include <peerbus/moe/lane.hpp>
#include <peerbus/moe/row_stream.hpp>

namespace peerbus::moe {

/// The result of a combine and its optional inputs.
struct combine_sum {
  std::span<bf16> out;  ///< [tokens, hidden]
  combine_terms terms;  ///< weights, biases and local rows; each may be empty
};

/// Sums the outputs of the copies of each token of `batch` in the share of lane `as`. out[t] = the
/// biases, then the sum over the copies of token t, in order, of factor times output, in f32. All
/// roads use this function, so that the arithmetic of combine is the same for all. `output_of(t,
/// i)` returns a pointer to the `hidden` values of copy i of token t.
template <class Batch, class OutputOf>
void sum_copies(const Batch& batch, std::size_t hidden, const combine_sum& sum, lane as,
                OutputOf&& output_of) noexcept {
  const kernel::kernel_set& kernels = kernel::best();
  const departures& leaving = batch.leaving;
  const lane::range share = as.share(leaving.tokens());
  const std::size_t row_bytes = hidden * sizeof(bf16);
  row_stream stream{{.rows = leaving.tokens(), .row_bytes = row_bytes}, batch.stream_from};
  for (std::size_t t = share.begin; t < share.end; ++t) {
    const bf16* rows[max_top_k + 2];
    float factors[max_top_k + 2];
    std::size_t count = 0;
    const auto add = [&](const bf16* row, float factor) noexcept {
      rows[count] = row;
      factors[count++] = factor;
    };
    for (const auto& bias : sum.terms.bias)
      if (!bias.empty()) add(bias.data() + t * hidden, 1.0F);
    const auto places = leaving.places(t);
    const float* const factor = sum.terms.weights.empty()
                                    ? leaving.factors(t).data()
                                    : sum.terms.weights.data() + t * places.size();
    for (std::size_t i = 0; i < places.size(); ++i) {
      if (places[i].sent())
        add(output_of(t, i), factor[i]);
      else if (!sum.terms.local.empty() && sum.terms.local[t * places.size() + i] != nullptr)
        add(sum.terms.local[t * places.size() + i], factor[i]);
    }
    bf16* const out = sum.out.data() + t * hidden;
    bf16* const target = stream ? reinterpret_cast<bf16*>(stream.row()) : out;
    kernels.weighted_sum(rows, factors, count, hidden, target);
    if (stream) stream.copy(reinterpret_cast<std::byte*>(out), stream.row(), row_bytes);
  }
}

}  // namespace peerbus::moe
