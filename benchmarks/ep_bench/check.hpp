// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <peerbus/core/bf16.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>

#include "ep_bench/experts.hpp"
#include "ep_bench/options.hpp"
#include "ep_bench/oracle.hpp"
#include "ep_bench/payload.hpp"

namespace ep_bench {

/// Compares what arrived with what the oracle says, bit by bit. Each function returns the first
/// difference in words, or nothing if all is right.
class any_checker {
 public:
  any_checker(const options& chosen, const oracle& truth, std::size_t rank,
              const wire_format& format)
      : chosen_{chosen},
        by_rank_{chosen.by_rank()},
        truth_{&truth},
        rank_{rank},
        format_{format},
        content_{chosen.seed, format.of_tokens},
        codes_(chosen.hidden),
        row_(format.row_bytes),
        scale_(format.scale_bytes),
        output_(chosen.hidden),
        exact_(chosen.hidden),
        part_(chosen.hidden),
        group_sum_(chosen.hidden),
        sums_(chosen.hidden) {}

  /// What a dispatch brought to this rank, in either kind of layout: bytes, scales, order and
  /// number of rows, origins where they are told, and, rank-major, the slots and the index.
  template <class Received>
  [[nodiscard]] std::string received(const Received& arrived) {
    if constexpr (requires { arrived.rows_from(0, peerbus::rank_id{0}); }) {
      return by_expert_in_slots(arrived);
    } else if constexpr (requires { arrived.rows_from(peerbus::rank_id{0}); }) {
      std::vector<std::size_t> used(arrived.local_experts());
      const auto expected = truth_->rows_at(rank_);
      std::span<const oracle::token_row> left{expected};
      for (const peerbus::rank_id source : peerbus::all_ranks{arrived.ranks()}) {
        const auto rows = arrived.rows_from(source);
        const std::size_t count = std::min(rows.count(), left.size());
        if (auto wrong = by_token(rows, arrived, left.first(count), used); !wrong.empty())
          return wrong;
        left = left.subspan(count);
      }
      if (!left.empty()) return say(left.size(), " rows are missing");
      return all_used(arrived, used);
    } else if constexpr (requires { arrived.local_experts(); }) {
      std::vector<std::size_t> used(arrived.local_experts());
      if (auto wrong = by_token(arrived, arrived, truth_->rows_at(rank_), used); !wrong.empty())
        return wrong;
      return all_used(arrived, used);
    } else {
      return by_expert(arrived);
    }
  }

  /// Every element of the combined tokens.
  [[nodiscard]] std::string combined(std::span<const peerbus::bf16> out) {
    const std::size_t hidden = chosen_.hidden;
    for (std::size_t token = 0; token < truth_->tokens_of(rank_); ++token) {
      const float unit = content_.fill(rank_, token, codes_);
      const auto& group_of = chosen_.relayed_among;
      if (group_of.empty()) {
        sum_within(token, unit, sums_, [](std::size_t) { return true; });
      } else {
        std::fill(sums_.begin(), sums_.end(), 0.0F);
        const std::uint32_t last = *std::max_element(group_of.begin(), group_of.end());
        for (std::uint32_t group = 0; group <= last; ++group) {
          sum_within(token, unit, group_sum_,
                     [&](std::size_t rank) { return group_of[rank] == group; });
          add_rounded(group_sum_, sums_);
        }
      }
      for (std::size_t j = 0; j < hidden; ++j)
        if (out[token * hidden + j] != peerbus::bf16{sums_[j]})
          return say("combined token ", token, ", column ", j, " has bits ",
                     out[token * hidden + j].bits, ", expected ", peerbus::bf16{sums_[j]}.bits);
    }
    return {};
  }

  /// What an expert, or rank-major a rank, has for a row that this rank sent, as found at `at`.
  [[nodiscard]] std::string output_of(const oracle::sent_row& sent, const std::byte* at) {
    const float unit = content_.fill(rank_, sent.token, codes_);
    if (by_rank_) {
      sum_slots(rank_, sent.token, unit, part_,
                [&](std::int32_t e) { return holds(sent.rank, e); });
    } else {
      const std::size_t slot = sent.token * chosen_.top_k + sent.copy;
      apply(static_cast<std::size_t>(truth_->mine().experts[slot]), unit, part_);
    }
    std::transform(part_.begin(), part_.end(), output_.begin(),
                   [](float value) { return peerbus::bf16{value}; });
    if (std::memcmp(at, output_.data(), output_.size() * sizeof output_[0]) != 0)
      return say("the plain read of token ", sent.token, ", copy ", sent.copy,
                 " finds another row than that of rank ", sent.rank);
    return {};
  }

 private:
  template <class Received>
  [[nodiscard]] std::string by_expert(const Received& arrived) {
    std::size_t expert = truth_->first_expert(rank_);
    for (const auto& rows : arrived.experts()) {
      const auto& expected = truth_->rows_of(expert);
      if (rows.id() != truth_->logical(expert) || rows.count() != expected.size())
        return say("expert ", rows.id(), " has ", rows.count(), " rows, expected expert ",
                   truth_->logical(expert), " with ", expected.size());
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const std::size_t token = expected[i].slot / chosen_.top_k;
        if (!right(rows, i, {expected[i].source, token, expected[i].slot % chosen_.top_k}))
          return say("row ", i, " of expert ", expert, " is not token ", token, " of rank ",
                     expected[i].source);
      }
      ++expert;
    }
    if (expert != truth_->first_expert(rank_ + 1))
      return say("experts up to ", expert, " arrived, expected up to ",
                 truth_->first_expert(rank_ + 1));
    return {};
  }

  template <class Received>
  [[nodiscard]] std::string by_expert_in_slots(const Received& arrived) {
    for (std::size_t e = 0; e < arrived.local_experts(); ++e) {
      const std::size_t expert = truth_->first_expert(rank_) + e;
      std::span<const oracle::copy> left{truth_->rows_of(expert)};
      for (const peerbus::rank_id source : peerbus::all_ranks{arrived.ranks()}) {
        const auto rows = arrived.rows_from(e, source);
        for (std::size_t i = 0; i < rows.count(); ++i, left = left.subspan(1)) {
          if (left.empty()) return say("expert ", expert, " has more rows than expected");
          const std::size_t token = left[0].slot / chosen_.top_k;
          if (truth_->source_of(left[0].source) != source.index() ||
              !right(rows, i, {left[0].source, token, left[0].slot % chosen_.top_k}))
            return say("row ", i, " of expert ", expert, " from ", source, " is not token ", token,
                       " of rank ", left[0].source);
        }
      }
      if (!left.empty()) return say("expert ", expert, " misses ", left.size(), " rows");
    }
    return {};
  }

  /// `index` numbers the rows through all rows of the rank. Counts in `used` the uses of rows by
  /// local expert.
  template <class Rows, class Index>
  [[nodiscard]] std::string by_token(const Rows& rows, const Index& index,
                                     std::span<const oracle::token_row> expected,
                                     std::vector<std::size_t>& used) {
    if (rows.count() != expected.size())
      return say(rows.count(), " rows arrived, expected ", expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (!right(rows, i, expected[i]))
        return say("row ", i, " is not token ", expected[i].token, " of rank ", expected[i].source);
      const std::size_t number = rows.first_row() + i;
      const gate::choice& route = truth_->choice_of(expected[i].source);
      for (std::size_t k = 0; k < chosen_.top_k; ++k) {
        const std::size_t slot = expected[i].token * chosen_.top_k + k;
        const bool here = holds(rank_, route.places[slot]);
        const auto local =
            here ? route.places[slot] - static_cast<std::int32_t>(truth_->first_expert(rank_)) : -1;
        if (index.experts(number)[k] != local ||
            index.weights(number)[k] != (here ? route.weights[slot] : 0.0F))
          return say("slot ", k, " of row ", number, " has local expert ", index.experts(number)[k],
                     " with weight ", index.weights(number)[k], ", expected ", local, " with ",
                     here ? route.weights[slot] : 0.0F);
        if (!here) continue;
        const auto uses = index.uses_of(static_cast<std::size_t>(local));
        const std::size_t at = used[static_cast<std::size_t>(local)]++;
        if (at >= uses.size() || uses[at].row != number || uses[at].slot != k)
          return say("use ", at, " of local expert ", local, " is not slot ", k, " of row ",
                     number);
      }
    }
    return {};
  }

  template <class Index>
  [[nodiscard]] std::string all_used(const Index& index, const std::vector<std::size_t>& used) {
    for (std::size_t e = 0; e < used.size(); ++e)
      if (index.uses_of(e).size() != used[e])
        return say("local expert ", e, " has ", index.uses_of(e).size(), " uses, expected ",
                   used[e]);
    return {};
  }

  template <class Rows>
  [[nodiscard]] bool right(const Rows& rows, std::size_t i, const oracle::token_row& expected) {
    const float unit = content_.fill(expected.source, expected.token, codes_);
    format_.as_row(codes_, unit, row_.data(), scale_.data());
    if constexpr (requires { rows.origin(i); }) {
      const auto origin = rows.origin(i);
      if (origin.rank.index() != expected.source || origin.token != expected.token ||
          origin.slot != expected.copy)
        return false;
    }
    const auto scales = std::as_bytes(rows.scales());
    return std::memcmp(rows.row(i).data(), row_.data(), row_.size()) == 0 &&
           (scale_.empty() ||
            std::memcmp(scales.data() + i * scale_.size(), scale_.data(), scale_.size()) == 0);
  }

  [[nodiscard]] bool holds(std::size_t rank, std::int32_t expert) const noexcept {
    return truth_->holds(rank, expert);
  }

  /// Sums the outputs for the token in `codes_`, of this rank, of the ranks that `counts(rank)`
  /// accepts: rank-major the rounded sums of ranks, else the outputs of experts.
  template <class Counts>
  void sum_within(std::size_t token, float unit, std::vector<float>& sum, Counts&& counts) {
    if (!by_rank_)
      return sum_slots(rank_, token, unit, sum,
                       [&](std::int32_t e) { return counts(truth_->owner_of(e)); });
    std::fill(sum.begin(), sum.end(), 0.0F);
    for (const std::size_t at : truth_->ranks_of(rank_, token)) {
      if (!counts(at)) continue;
      sum_slots(rank_, token, unit, part_, [&](std::int32_t e) { return holds(at, e); });
      add_rounded(part_, sum);
    }
  }
  static void add_rounded(const std::vector<float>& part, std::vector<float>& sum) noexcept {
    for (std::size_t j = 0; j < sum.size(); ++j)
      sum[j] += static_cast<float>(peerbus::bf16{part[j]});
  }

  /// What `expert` makes of the token in `codes_`, in f32, where it is exact.
  void apply(std::size_t expert, float unit, std::vector<float>& out) const noexcept {
    const transform applied{expert, chosen_.hidden};
    const std::size_t left = out.size() - applied.rotation;
    const float factor = unit * applied.factor;
    for (std::size_t j = 0; j < left; ++j)
      out[j] = static_cast<float>(codes_[j + applied.rotation]) * factor;
    for (std::size_t j = left; j < out.size(); ++j)
      out[j] = static_cast<float>(codes_[j - left]) * factor;
  }

  /// Weighted sum of the token in `codes_` over its slots, in their order, whose expert `wanted`
  /// accepts. Outputs of experts are bf16.
  template <class Wanted>
  void sum_slots(std::size_t source, std::size_t token, float unit, std::vector<float>& sum,
                 Wanted&& wanted) {
    const gate::choice& route = truth_->choice_of(source);
    std::fill(sum.begin(), sum.end(), 0.0F);
    for (std::size_t k = 0; k < chosen_.top_k; ++k) {
      const std::size_t slot = token * chosen_.top_k + k;
      if (!wanted(route.places[slot])) continue;
      apply(static_cast<std::size_t>(route.experts[slot]), unit, exact_);
      for (std::size_t j = 0; j < sum.size(); ++j)
        sum[j] =
            std::fma(route.weights[slot], static_cast<float>(peerbus::bf16{exact_[j]}), sum[j]);
    }
  }

  template <class... Parts>
  [[nodiscard]] std::string say(const Parts&... parts) const {
    return peerbus::concat("rank ", rank_, ": ", parts...);
  }

  options chosen_;
  bool by_rank_;
  const oracle* truth_;
  std::size_t rank_;
  wire_format format_;
  payload content_;
  std::vector<std::int8_t> codes_;
  std::vector<std::byte> row_;
  std::vector<std::byte> scale_;
  std::vector<peerbus::bf16> output_;
  std::vector<float> exact_;
  std::vector<float> part_;
  std::vector<float> group_sum_;
  std::vector<float> sums_;
};

/// The same for a codec whose type is known.
template <class Codec>
class checker : public any_checker {
 public:
  checker(const options& chosen, const oracle& truth, std::size_t rank)
      : any_checker{chosen, truth, rank, wire_format::of<Codec>(chosen.hidden)} {}
};

}  // namespace ep_bench
