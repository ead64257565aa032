// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <span>
#include <vector>

#include <peerbus/core/bf16.hpp>

#include "support/oracle.hpp"

/// What CANN's operators for expert parallelism must give, computed slowly and plainly from what
/// all ranks put in. Nothing here uses the library's arithmetic.
namespace oracle::cann {

/// A model on a group of ranks.
struct world {
  std::size_t ranks = 1;
  std::size_t hidden = 32;
  std::size_t top_k = 2;
  std::size_t moe = 0;
  std::size_t shared = 0;
  std::size_t shared_ranks = 0;
  std::size_t zero = 0;
  std::size_t copy = 0;
  std::size_t constant = 0;

  [[nodiscard]] std::size_t ids() const { return moe + zero + copy + constant; }
  [[nodiscard]] std::size_t per_rank() const { return moe / (ranks - shared_ranks); }
  [[nodiscard]] std::size_t local(std::size_t rank) const {
    return rank < shared_ranks ? 1 : per_rank();
  }
  [[nodiscard]] std::size_t rank_of_moe(std::size_t e) const {
    return shared_ranks + e / per_rank();
  }
  /// Of shared expert j for tokens of `source`: its replicas lie side by side and take turns.
  [[nodiscard]] std::size_t rank_of_shared(std::size_t j, std::size_t source) const {
    const std::size_t replicas = shared_ranks / shared;
    return j * replicas + source % replicas;
  }
};

enum class masks { none, tokens, slots };

/// What one rank gives to dispatch and combine.
struct input {
  std::size_t count = 0;
  std::vector<peerbus::bf16> x;
  std::vector<std::int32_t> ids;
  std::vector<float> scales;
  std::deque<bool> active;  ///< [count, top_k]
  masks kind = masks::none;
  std::vector<peerbus::bf16> shared_x;
  std::vector<peerbus::bf16> alpha_1;
  std::vector<peerbus::bf16> alpha_2;
  std::vector<peerbus::bf16> v;

  [[nodiscard]] bool sends(const world& of, std::size_t t) const {
    for (std::size_t k = 0; k < of.top_k; ++k)
      if (active[t * of.top_k + k]) return true;
    return false;
  }
};

inline std::vector<peerbus::bf16> numbers(random& from, std::size_t count) {
  std::vector<peerbus::bf16> result;
  for (std::size_t i = 0; i < count; ++i)
    result.push_back(round(static_cast<float>(4 * from.unit() - 2)));
  return result;
}

/// Slots that take no part hold what must not be read.
inline input make_input(const world& of, std::size_t rank, std::size_t count, masks kind,
                        bool with_shared_x, std::uint64_t seed) {
  const shape drawn{of.ranks, of.ids(), of.hidden, of.top_k};
  const oracle::input base = oracle::make_input(drawn, rank, count, routes::uniform, seed);
  input made{count, base.tokens, {}, base.weights, {}, kind, {}, {}, {}, {}};
  made.ids.assign(base.experts.begin(), base.experts.end());
  random more{seed * 7919 + rank};
  const std::size_t first = count == 0 ? 0 : more.below(count + 1);
  for (std::size_t t = 0; t < count; ++t) {
    const bool whole = more.below(5) == 0;
    for (std::size_t k = 0; k < of.top_k; ++k) {
      bool on = true;
      if (kind == masks::tokens) on = t < first;
      if (kind == masks::slots) on = !whole && more.below(3) != 0;
      made.active.push_back(on);
      if (on) continue;
      made.ids[t * of.top_k + k] = more.below(2) == 0 ? -7 : 1'000'000'000;
      made.scales[t * of.top_k + k] = std::numeric_limits<float>::quiet_NaN();
    }
  }
  if (with_shared_x) made.shared_x = numbers(more, count * of.hidden);
  random same{seed};  // A model's constants are alike on all ranks.
  made.alpha_1 = numbers(same, of.constant);
  made.alpha_2 = numbers(same, of.constant);
  made.v = numbers(same, of.constant * of.hidden);
  return made;
}

struct placed {
  std::size_t source;
  std::size_t token;
  std::size_t slot;
};

/// The rows of local expert `e` of `rank`, in order.
inline std::vector<placed> rows_of(const world& of, const std::vector<input>& inputs,
                                   std::size_t rank, std::size_t e) {
  std::vector<placed> result;
  for (std::size_t r = 0; r < inputs.size(); ++r)
    for (std::size_t t = 0; t < inputs[r].count; ++t) {
      for (std::size_t k = 0; k < of.top_k; ++k) {
        if (!inputs[r].active[t * of.top_k + k]) continue;
        const auto id = static_cast<std::size_t>(inputs[r].ids[t * of.top_k + k]);
        if (id < of.moe && of.rank_of_moe(id) == rank && id % of.per_rank() == e)
          result.push_back({r, t, k});
      }
      if (!inputs[r].sends(of, t)) continue;
      for (std::size_t j = 0; j < of.shared && of.shared_ranks != 0; ++j)
        if (of.rank_of_shared(j, r) == rank && e == 0) result.push_back({r, t, of.top_k + j});
    }
  return result;
}

/// Which function local expert `e` of `rank` is: replicas of a shared expert differ, so that a
/// token at the wrong one cannot pass.
inline std::size_t function_of(const world& of, std::size_t rank, std::size_t e) {
  if (rank < of.shared_ranks) return of.moe + rank;
  return (rank - of.shared_ranks) * of.per_rank() + e;
}

inline std::span<const peerbus::bf16> row_of(const std::vector<peerbus::bf16>& rows,
                                             std::size_t hidden, std::size_t i) {
  return std::span{rows}.subspan(i * hidden, hidden);
}

/// What combine must give to `rank`, which put `mine` in.
template <class Codec>
std::vector<peerbus::bf16> combined(const world& of, const input& mine, std::size_t rank) {
  std::vector<peerbus::bf16> result;
  for (std::size_t t = 0; t < mine.count; ++t) {
    const auto x = row_of(mine.x, of.hidden, t);
    const auto sent = codec_of<Codec>::encode(x);
    for (std::size_t h = 0; h < of.hidden; ++h) {
      float sum = 0;
      if (!mine.shared_x.empty()) sum += widen(mine.shared_x[t * of.hidden + h]);
      for (std::size_t k = 0; k < of.top_k; ++k) {
        const std::size_t slot = t * of.top_k + k;
        if (!mine.active[slot]) continue;
        const auto id = static_cast<std::size_t>(mine.ids[slot]);
        peerbus::bf16 term;
        if (id < of.moe) {
          const std::size_t there = of.rank_of_moe(id);
          term = apply(function_of(of, there, id % of.per_rank()), h, sent.values[h]);
        } else if (id < of.moe + of.zero) {
          continue;
        } else if (id < of.moe + of.zero + of.copy) {
          term = x[h];
        } else {
          const std::size_t c = id - of.moe - of.zero - of.copy;
          const float scaled = widen(mine.alpha_1[c]) * widen(x[h]);
          term = round(
              std::fma(widen(mine.alpha_2[c]), widen(mine.v[c * of.hidden + h]), scaled + 0.0F));
        }
        sum = std::fma(mine.scales[slot], widen(term), sum);
      }
      for (std::size_t j = 0; j < of.shared && of.shared_ranks != 0 && mine.sends(of, t); ++j)
        sum += widen(apply(function_of(of, of.rank_of_shared(j, rank), 0), h, sent.values[h]));
      result.push_back(round(sum));
    }
  }
  return result;
}

}  // namespace oracle::cann
