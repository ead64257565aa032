// SPDX-License-Identifier: MIT
// ctest: tsan
#include <cstddef>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/layout.hpp>

#include "support/oracle.hpp"

using peerbus::rank_id;
using peerbus::moe::exchange_config;
using peerbus::moe::exchange_layout;
using peerbus::moe::expert_placement;
using peerbus::moe::road;
using peerbus::moe::row_format;

namespace {

constexpr row_format int8_format(std::size_t hidden) {
  using codec = peerbus::codec::int8_per_token;
  return {codec::row_bytes(hidden), codec::scale_bytes(hidden)};
}

constexpr std::size_t sum(const exchange_layout& layout) {
  std::size_t all = 0;
  for (const auto& part : layout.components()) all += part.bytes;
  return all;
}

// 320 ranks of one expert each, 96 tokens, hidden 7168, top-8, int8.
constexpr exchange_config paper{.experts = 320, .hidden = 7168, .top_k = 8, .max_tokens = 96};
constexpr exchange_layout of_paper{paper, 320, int8_format(7168), road::direct};
static_assert(of_paper.row_capacity ==
              320 * 96);  // one expert here: one copy of each token at most
static_assert(of_paper.message_bytes == 64 + 320 * 4);
static_assert(of_paper.components()[0].bytes == 2 * 320 * (64 + 1280) + 2 * 320 * 64);  // counts
static_assert(of_paper.components()[1].bytes == std::size_t{30720} * 7168);             // rows
static_assert(of_paper.components()[2].bytes == 30720 * 4);                             // scales
static_assert(of_paper.components()[3].bytes == 30720 * 4);                             // origins
static_assert(of_paper.components()[4].bytes == std::size_t{30720} * 7168 * 2);         // outputs
static_assert(of_paper.components()[5].bytes == 0);                                     // staging
static_assert(of_paper.total == 661'749'760);
static_assert(of_paper.total < std::size_t{645} << 20);  // what that system takes
static_assert(sum(of_paper) == of_paper.total);

static_assert(expert_placement{10, 4}.count(rank_id{1}) == 3);
static_assert(expert_placement{10, 4}.first(rank_id{3}) == 8);
static_assert(expert_placement{10, 4}.owner(5) == rank_id{1});
static_assert(expert_placement{3, 8}.most() == 1);

}  // namespace

TEST_CASE("experts are dealt out in order, as the oracle deals them") {
  for (std::size_t ranks = 1; ranks <= 12; ++ranks)
    for (std::size_t experts = 1; experts <= 40; ++experts) {
      CAPTURE(ranks);
      CAPTURE(experts);
      const auto owners = oracle::owners({ranks, experts, 16, 1});
      const expert_placement placement{experts, ranks};
      std::vector<std::size_t> counts(ranks);
      std::size_t most = 0;
      for (std::size_t e = 0; e < experts; ++e) {
        REQUIRE(placement.owner(e).index() == owners[e]);
        if (counts[owners[e]]++ == 0) CHECK(placement.first(rank_id{owners[e]}) == e);
        most = counts[owners[e]] > most ? counts[owners[e]] : most;
      }
      for (std::size_t r = 0; r < ranks; ++r) CHECK(placement.count(rank_id{r}) == counts[r]);
      CHECK(placement.most() == most);
    }
}

TEST_CASE("areas are aligned, do not overlap, hold the worst case, and sum to the total") {
  for (const road way : {road::direct, road::staged})
    for (const std::size_t ranks : {1U, 3U, 8U, 320U})
      for (const std::size_t experts : {1U, 7U, 64U, 257U})
        for (const std::size_t hidden : {16U, 48U, 7168U})
          for (const std::size_t top_k : {1U, 8U, 32U}) {
            const exchange_config config{
                .experts = experts, .hidden = hidden, .top_k = top_k, .max_tokens = 5};
            const row_format format = int8_format(hidden);
            const exchange_layout layout{config, ranks, format, way};
            // A token has at most one copy per local expert, and top_k in all.
            std::size_t most = 0;
            for (std::size_t r = 0; r < ranks; ++r) {
              const std::size_t local = experts / ranks + (r < experts % ranks ? 1 : 0);
              most = local > most ? local : most;
            }
            const std::size_t rows = ranks * 5 * (top_k < most ? top_k : most);
            CHECK(layout.row_capacity == rows);
            const std::size_t staged = way == road::staged ? 5 : 0;
            const struct {
              std::size_t at, bytes;
            } areas[] = {{layout.counts, 2 * ranks * (64 + 4 * experts)},
                         {layout.refusals, 2 * ranks * 32},
                         {layout.rows, rows * format.row_bytes},
                         {layout.scales, rows * format.scale_bytes},
                         {layout.origins, rows * 4},
                         {layout.outputs, rows * hidden * 2},
                         {layout.staged_rows, staged * format.row_bytes},
                         {layout.staged_scales, staged * format.scale_bytes},
                         {layout.staged_origins, staged * 4},
                         {layout.returned, staged * top_k * hidden * 2}};
            std::size_t end = 0;
            for (const auto& area : areas) {
              CHECK(area.at >= end);
              CHECK(area.at % peerbus::cache_line_bytes == 0);
              end = area.at + area.bytes;
            }
            CHECK(layout.total >= end);
            CHECK(layout.total < end + peerbus::cache_line_bytes);
            CHECK(sum(layout) == layout.total);
          }
}

TEST_CASE("bytes on the wire per row") {
  CHECK(peerbus::moe::dispatch_bytes_per_row(int8_format(7168)) == 7168 + 4 + 4);
  CHECK(peerbus::moe::combine_bytes_per_row(7168) == 14336);
}
