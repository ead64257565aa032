// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>

#include <peerbus/core/bf16.hpp>
#include <peerbus/core/compiled.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/kernel/kernel_set.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/departures.hpp>
#include <peerbus/moe/lane.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/road/road_batch.hpp>
#include <peerbus/moe/road/sum_copies.hpp>
#include <peerbus/moe/row_stream.hpp>
#include <peerbus/moe/set_view.hpp>

namespace peerbus::moe {

PEERBUS_INLINE void sum_copies(const road_batch& batch, std::span<const set_view> sets,
                               rank_id own_rank, const combine_sum& sum, lane as) noexcept {
  const kernel::kernel_set& kernels = kernel::best();
  const departures& leaving = batch.leaving;
  const set_view home = sets[own_rank.index()];
  const std::size_t hidden = home.map().hidden;
  const bool outputs_home = home.map().outputs_home;
  const auto output_of = [&](const row_place& place, std::size_t t,
                             std::size_t copy) noexcept -> const bf16* {
    if (outputs_home) return home.home_slot(t, copy);
    const set_view& expert_set = sets[place.rank];
    return expert_set ? expert_set.output(place.row) : home.returned(t, copy);
  };
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
        add(output_of(places[i], t, i), factor[i]);
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
