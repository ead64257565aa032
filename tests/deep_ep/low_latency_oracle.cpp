// SPDX-License-Identifier: MIT
#include "deep_ep/low_latency_oracle.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numbers>
#include <span>
#include <utility>
#include <vector>

#include <peerbus/core/bf16.hpp>

#include "support/e4m3_oracle.hpp"
#include "support/oracle.hpp"

namespace oracle::low_latency {
namespace {

std::size_t count_of(const world& of, std::size_t rank) {
  switch (of.counts) {
    case sizes::full: return of.max_tokens;
    case sizes::fewer: return of.max_tokens - (rank + 1) % of.max_tokens;
    case sizes::some_none: return rank % 2 == 0 ? 0 : of.max_tokens - rank % of.max_tokens;
    case sizes::all_none: return 0;
  }
  return 0;
}

void fill_tokens(const world& of, std::size_t rank, random& numbers, input& made) {
  if (of.tokens == contents::lattice) return;
  for (std::size_t i = 0; i < made.tokens.size(); ++i) {
    if (of.tokens == contents::normal) {
      const double radius = std::sqrt(-2 * std::log(numbers.unit()));
      const double angle = 2 * std::numbers::pi * numbers.unit();
      made.tokens[i] = round(static_cast<float>(radius * std::cos(angle)));
      continue;
    }
    const bool last = i % of.hidden + 128 >= of.hidden;
    made.tokens[i] =
        round(last ? static_cast<float>(i / of.hidden) : static_cast<float>(rank) - 128.0F);
  }
}

}  // namespace

row encode(std::span<const bf16> token, format as) {
  row made;
  if (as == format::bf16) {
    for (const bf16 value : token) {
      made.bytes.push_back(static_cast<std::uint8_t>(value.bits & 0xffU));
      made.bytes.push_back(static_cast<std::uint8_t>(value.bits >> 8U));
      made.values.push_back(widen(value));
    }
    return made;
  }
  const std::size_t groups = token.size() / 128;
  if (as == format::ue8m0) made.scales.resize((groups + 3) / 4);
  for (std::size_t g = 0; g < groups; ++g) {
    const auto group = token.subspan(g * 128, 128);
    float largest = 0;
    bool finite = true;
    for (const bf16 value : group) {
      finite = finite && std::isfinite(widen(value));
      largest = std::max(largest, std::fabs(widen(value)));
    }
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
    const e4m3_scale scale =
        finite ? e4m3_scale_of(largest, as != format::fp8) : e4m3_scale{nan, nan};
    for (const bf16 value : group) {
      const unsigned sign = value.bits >> 8U & 0x80U;
      const unsigned code = e4m3_code(std::fabs(widen(value)) * scale.to_codes) & 0x7fU;
      made.bytes.push_back(static_cast<std::uint8_t>(code | sign));
      const double magnitude = code == 0x7f ? static_cast<double>(nan) : e4m3_values()[code];
      const auto read = static_cast<float>(magnitude * static_cast<double>(scale.to_values));
      made.values.push_back(sign == 0 ? read : -read);
    }
    if (as == format::ue8m0)
      made.scales[g / 4] |=
          (finite ? 127U + static_cast<unsigned>(std::ilogb(scale.to_values)) : 255U)
          << (8 * (g % 4));
    else
      made.scales.push_back(std::bit_cast<std::uint32_t>(scale.to_values));
  }
  return made;
}

batch make_batch(const world& of, std::uint64_t seed) {
  batch made{of, {}, {}, {}};
  const auto owner = owners(of.plain());
  for (std::size_t rank = 0; rank < of.ranks; ++rank) {
    routes drawn = routes::uniform;
    if (of.routes == ways::zipf) drawn = routes::zipf;
    if (of.routes == ways::holes) drawn = routes::holes;
    if (of.routes == ways::nowhere) drawn = routes::nowhere;
    input mine = make_input(of.plain(), rank, count_of(of, rank), drawn, seed);
    random numbers{seed * 77 + rank};
    fill_tokens(of, rank, numbers, mine);
    if (of.routes == ways::one_rank) {
      // All of them to the same rank, another one with each seed.
      const std::size_t to = owner[seed % of.experts];
      for (std::size_t i = 0; i < mine.experts.size(); ++i)
        if (mine.experts[i] != -1 && owner[static_cast<std::size_t>(mine.experts[i])] != to)
          mine.experts[i] = -1;
    }
    std::vector<row> rows;
    for (std::size_t t = 0; t < mine.count; ++t)
      rows.push_back(encode(token_of(of.plain(), mine, t), of.rows));
    made.rows.push_back(std::move(rows));
    made.routed.push_back(mine.experts);
    made.inputs.push_back(std::move(mine));
  }
  return made;
}

std::vector<std::size_t> tokens_for(const batch& from, std::size_t source, std::size_t e) {
  std::vector<std::size_t> result;
  for (std::size_t i = 0; i < from.routed[source].size(); ++i)
    if (from.routed[source][i] == static_cast<std::int64_t>(e)) result.push_back(i / from.of.top_k);
  return result;
}

std::vector<std::size_t> experts_of(const world& of, std::size_t rank) {
  const auto owner = owners(of.plain());
  std::vector<std::size_t> result;
  for (std::size_t e = 0; e < of.experts; ++e)
    if (owner[e] == rank) result.push_back(e);
  return result;
}

std::vector<bf16> combined(const batch& from, std::size_t rank) {
  const input& mine = from.inputs[rank];
  std::vector<bf16> result;
  for (std::size_t t = 0; t < mine.count; ++t) {
    std::vector<float> sums(from.of.hidden);
    for (std::size_t k = 0; k < from.of.top_k; ++k) {
      const std::size_t slot = t * from.of.top_k + k;
      if (const std::int64_t id = from.routed[rank][slot]; id != -1)
        add_outputs(static_cast<std::size_t>(id), mine.weights[slot], from.rows[rank][t].values,
                    sums);
    }
    result.resize(result.size() + from.of.hidden);
    round(sums, std::span{result}.last(from.of.hidden));
  }
  return result;
}

double calc_diff(std::span<const double> x, std::span<const double> y) {
  double product = 0;
  double squares = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    product += (x[i] + 1) * (y[i] + 1);
    squares += (x[i] + 1) * (x[i] + 1) + (y[i] + 1) * (y[i] + 1);
  }
  return squares == 0 ? 0 : 1 - 2 * product / squares;
}

double element_diff(std::span<const double> given, std::span<const double> expected) {
  double worst = 0;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const double off = std::fabs(given[i] - expected[i]) / std::max(0.02, std::fabs(expected[i]));
    worst = std::isnan(off) ? std::numeric_limits<double>::infinity() : std::max(worst, off);
  }
  return worst;
}

}  // namespace oracle::low_latency
