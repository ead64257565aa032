// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include <peerbus/codec/logfmt10.hpp>
#include <peerbus/core/placed.hpp>
#include <peerbus/kernel/group.hpp>
#include <peerbus/kernel/kernel_set.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/memory_map.hpp>
#include <peerbus/moe/path/sum_copies.hpp>
#include <peerbus/moe/plan/send_plan.hpp>
#include <peerbus/moe/row_stream.hpp>

namespace peerbus::moe {

namespace detail {

/// The terms of one output of combine, in the order in which they are added.
class sum_terms {
 public:
  /// Begins another sum.
  void clear() noexcept { count_ = coded_count_ = sum_count_ = 0; }
  /// Adds a row of bf16.
  void add(const bf16* row, float factor) noexcept {
    rows_[count_] = row;
    factors_[count_++] = factor;
  }
  /// Adds a LogFMT-10 row with its heads.
  void add_coded(const codec::logfmt10::reader& row, float factor) noexcept {
    coded_at_[coded_count_] = count_;
    coded_[coded_count_++] = row;
    add(nullptr, factor);
  }

  /// Adds a row of f32. Such rows are added after all others.
  void add_sum(const float* row) noexcept { sums_[sum_count_++] = row; }

  /// Writes the sum of the rows, of `hidden` values each, to `out`: as f32, or rounded to bf16.
  template <class Value>
  void sum(std::size_t hidden, Value* out) noexcept {
    if (coded_count_ == 0 && sum_count_ == 0) return add_up(hidden, out);
    constexpr std::size_t columns = kernel::group_columns;
    bf16 scratch[most][columns];
    const bf16* decoded[most];
    for (std::size_t begin = 0; begin < hidden; begin += columns) {
      const std::size_t count = std::min(columns, hidden - begin);
      if (coded_count_ != 0)
        codec::logfmt10::next_groups(std::span{coded_}.first(coded_count_), scratch, decoded);
      // Where a row is not coded, its pointer moves on; where it is, the group is decoded.
      for (std::size_t i = 0; i < coded_count_; ++i) rows_[coded_at_[i]] = decoded[i];
      if (sum_count_ == 0)
        add_up(count, out + begin);
      else
        add_sums(begin, count, out + begin);
      for (std::size_t i = 0; i < count_; ++i) rows_[i] += columns;
    }
  }

 private:
  void add_up(std::size_t columns, bf16* out) const noexcept {
    kernel::best().weighted_sum(rows_, factors_, count_, columns, out);
  }
  void add_up(std::size_t columns, float* out) const noexcept {
    kernel::best().weighted_sum_f32(rows_, factors_, count_, columns, out);
  }
  /// Adds up `columns` columns of all rows. Those of f32 begin at `begin`.
  void add_sums(std::size_t begin, std::size_t columns, float* out) const noexcept {
    add_up(columns, out);
    for (std::size_t row = 0; row < sum_count_; ++row)
      for (std::size_t i = 0; i < columns; ++i) out[i] += sums_[row][begin + i];
  }
  void add_sums(std::size_t begin, std::size_t columns, bf16* out) const noexcept {
    float values[kernel::group_columns];
    add_sums(begin, columns, values);
    // Compilers differ in the NaN that a sum is; `weighted_sum` has one for all.
    for (std::size_t i = 0; i < columns; ++i)
      if (__builtin_isnan(values[i])) values[i] = __builtin_nanf("");
    kernel::best().narrow(values, columns, out);
  }

  static constexpr std::size_t most = max_top_k + 2;
  static_assert(most <= codec::logfmt10::most_rows);

  const bf16* rows_[most];
  float factors_[most];
  std::size_t count_ = 0;
  codec::logfmt10::reader coded_[most];
  std::size_t coded_at_[most];
  std::size_t coded_count_ = 0;
  const float* sums_[most];
  std::size_t sum_count_ = 0;
};

}  // namespace detail

PEERBUS_INLINE void sum_copies(const row_path_batch& batch, std::span<const set_view> sets,
                               rank_id own_rank, const combine_sum& sum, lane caller) noexcept {
  const send_plan& leaving = batch.leaving;
  const set_view home = sets[own_rank.index()];
  const std::size_t hidden = home.map().hidden;
  const bool outputs_home = home.map().outputs_home;
  const bool sums_are_f32 = home.map().output_value_bytes == sizeof(float);
  const auto output_of = [&](const row_place& place, std::size_t t,
                             std::size_t copy) noexcept -> const bf16* {
    if (outputs_home) return home.home_slot(t, copy);
    const set_view& expert_set = sets[place.rank];
    return expert_set ? expert_set.output(place.row) : home.returned(t, copy);
  };
  const auto coded_output_of = [&](const row_place& place, std::size_t t,
                                   std::size_t copy) noexcept {
    namespace logfmt10 = codec::logfmt10;
    const auto* const heads = peerbus::detail::placed<logfmt10::head>(
        home.map().hands_on ? sets[place.rank].output_attachment(place.row)
                            : home.returned_attachment(t, copy));
    return logfmt10::reader{{heads, logfmt10::groups(hidden)},
                            reinterpret_cast<const std::byte*>(output_of(place, t, copy))};
  };
  const lane::range share = caller.share(leaving.tokens());
  const std::size_t row_bytes = hidden * sizeof(bf16);
  std::byte* const buffer = batch.buffers.of(caller);
  const row_stream stream{{.rows = leaving.tokens(), .row_bytes = row_bytes}, batch.stream_from};
  detail::sum_terms terms;
  for (std::size_t t = share.begin; t < share.end; ++t) {
    terms.clear();
    for (const auto& bias : sum.terms.bias)
      if (!bias.empty()) terms.add(bias.data() + t * hidden, 1.0F);
    if (!sum.local_weights.empty())
      for (std::size_t i = t * leaving.top_k(); i < (t + 1) * leaving.top_k(); ++i)
        if (sum.terms.local[i] != nullptr) terms.add(sum.terms.local[i], sum.local_weights[i]);
    const bool local_by_copy = !sum.terms.local.empty() && sum.local_weights.empty();
    const auto places = leaving.places(t);
    const float* const factor = sum.terms.weights.empty()
                                    ? leaving.factors(t).data()
                                    : sum.terms.weights.data() + t * places.size();
    const auto own = sum.terms.own.empty()
                         ? sum.terms.own
                         : sum.terms.own.subspan(t * places.size(), places.size());
    for (std::size_t i = 0; i < places.size(); ++i) {
      if (!own.empty() && own[i] != nullptr) {
        terms.add(own[i], factor[i]);
      } else if (!places[i].sent()) {
        if (local_by_copy && sum.terms.local[t * places.size() + i] != nullptr)
          terms.add(sum.terms.local[t * places.size() + i], factor[i]);
      } else if (sum.is_coded && (*sum.is_coded)(rank_id{places[i].rank})) {
        terms.add_coded(coded_output_of(places[i], t, i), factor[i]);
      } else if (sums_are_f32) {
        terms.add_sum(peerbus::detail::placed<float>(
            reinterpret_cast<const std::byte*>(output_of(places[i], t, i))));
      } else {
        terms.add(output_of(places[i], t, i), factor[i]);
      }
    }
    if (!sum.f32_out.empty()) {
      terms.sum(hidden, sum.f32_out.data() + t * hidden);
      continue;
    }
    bf16* const out = sum.out.data() + t * hidden;
    bf16* const target = stream ? peerbus::detail::placed<bf16>(buffer) : out;
    terms.sum(hidden, target);
    if (stream) stream.copy(reinterpret_cast<std::byte*>(out), buffer, row_bytes);
  }
}

}  // namespace peerbus::moe
