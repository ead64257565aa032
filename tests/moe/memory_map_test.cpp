// SPDX-License-Identifier: MIT
// ctest: tsan
#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/caches.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/engine/set_up.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/memory_map.hpp>

#include "support/oracle.hpp"

namespace memory_map_test {

using peerbus::align_up;
using peerbus::rank_id;
using peerbus::moe::compact;
using peerbus::moe::exchange_config;
using peerbus::moe::expert_placement;
using peerbus::moe::expert_slots;
using peerbus::moe::memory_map;
using peerbus::moe::outputs_at;
using peerbus::moe::padded;
using peerbus::moe::rank_major;
using peerbus::moe::row_format;
using peerbus::moe::row_path_memory;
using peerbus::moe::slots;

namespace {

constexpr row_format int8_format(std::size_t hidden) {
  using codec = peerbus::codec::int8_per_token;
  return {codec::row_bytes(hidden), codec::scale_bytes(hidden)};
}

constexpr std::size_t sum(const memory_map& map) {
  std::size_t all = 0;
  for (const auto& part : map.components()) all += part.bytes;
  return all;
}

// 320 ranks of one expert each, 96 tokens, hidden 7168, top-8, int8.
constexpr exchange_config paper{.experts = 320, .hidden = 7168, .top_k = 8, .max_tokens = 96};
constexpr exchange_config paper_home{
    .experts = 320, .hidden = 7168, .top_k = 8, .max_tokens = 96, .outputs = outputs_at::home};
constexpr row_path_memory by_stores{.stages = false, .outputs_may_be_home = true};
constexpr row_path_memory by_staged_puts{.stages = true, .outputs_may_be_home = false};
constexpr memory_map map_of(const exchange_config& config, std::size_t ranks, row_path_memory way) {
  return {config, compact{}.geometry(config, ranks), ranks, int8_format(config.hidden), way};
}
constexpr memory_map of_paper = map_of(paper, 320, by_stores);
constexpr memory_map at_home = map_of(paper_home, 320, by_stores);
// One expert here: one copy of each token at most.
static_assert(of_paper.row_capacity == 320 * 96);
static_assert(of_paper.message_bytes == 64 + 320);  // at most 96 of anything: one byte a count
static_assert(of_paper.components()[0].bytes == 2 * 320 * 384 + 2 * 320 * 64);   // counts
static_assert(of_paper.components()[1].bytes == std::size_t{30720} * 7168);      // rows
static_assert(of_paper.components()[2].bytes == 30720 * 4);                      // scales
static_assert(of_paper.components()[3].bytes == 30720 * 8);                      // origins
static_assert(of_paper.components()[4].bytes == 0);                              // attachments
static_assert(of_paper.components()[5].bytes == std::size_t{30720} * 7168 * 2);  // outputs
static_assert(of_paper.components()[6].bytes == 0);                              // staging
static_assert(at_home.components()[5].bytes == std::size_t{96} * 8 * 7168 * 2);  // outputs
static_assert(of_paper.total < std::size_t{645} << 20);  // what that system takes
static_assert(at_home.total < 260'000'000);              // 2.5 x less
static_assert(sum(of_paper) == of_paper.total && sum(at_home) == at_home.total);

// The same where rows are staged, with three batches at once. Outputs are at the experts all the
// same, and besides come home: 96 x 8 slots each time, however many ranks there are.
constexpr exchange_config paper_three{
    .experts = 320, .hidden = 7168, .top_k = 8, .max_tokens = 96, .in_flight = 3};
constexpr memory_map by_staging = map_of(paper, 320, by_staged_puts);
constexpr memory_map three_by_staging = map_of(paper_three, 320, by_staged_puts);
constexpr std::size_t staging_of_paper = std::size_t{96} * 7168  // rows, once per token
                                         + 96 * 4                // scales likewise
                                         + 96 * 8 * (4 + 8)      // scales and origins, packed
                                         +
                                         std::size_t{96} * 8 * 7168 * 2;  // outputs that come home
static_assert(staging_of_paper == 11'707'776);
static_assert(by_staging.components()[6].bytes == staging_of_paper);
static_assert(by_staging.total == of_paper.total + staging_of_paper);
static_assert(by_staging.total == 672'966'016);
static_assert(three_by_staging.components()[6].bytes == 3 * staging_of_paper);
static_assert(sum(by_staging) == by_staging.total);
static_assert(sum(three_by_staging) == three_by_staging.total);

static_assert(expert_placement{10, 4}.count(rank_id{1}) == 3);
static_assert(expert_placement{10, 4}.first(rank_id{3}) == 8);
static_assert(expert_placement{10, 4}.owner(5) == rank_id{1});
static_assert(expert_placement{3, 8}.most() == 1);

TEST_CASE("a group without ranks has no experts, and its map no rows") {
  constexpr exchange_config config{.experts = 8, .hidden = 64, .top_k = 2, .max_tokens = 4};
  constexpr expert_placement experts{config.experts, 0};
  CHECK(experts.most() == 0);
  constexpr memory_map map{config, compact{}.geometry(config, 0), 0, row_format{64, 4}};
  CHECK(map.row_capacity == 0);
  CHECK(map.total == 0);
}

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

template <class Layout>
void check_areas(const Layout& layout, const exchange_config& config, std::size_t ranks,
                 row_path_memory way) {
  const row_format format = int8_format(config.hidden);
  const auto geometry = layout.geometry(config, ranks);
  const memory_map map{config, geometry, ranks, format, way};
  // A token has at most one copy per local expert, and top_k in all; rank-major, one.
  const std::size_t most = (config.experts + ranks - 1) / ranks;
  const std::size_t tokens = config.max_tokens;
  const bool by_rank = std::is_same_v<Layout, rank_major> || std::is_same_v<Layout, slots>;
  const bool in_slots = std::is_same_v<Layout, slots> || std::is_same_v<Layout, expert_slots>;
  std::size_t rows = ranks * tokens * (config.top_k < most ? config.top_k : most);
  if (by_rank) rows = ranks * tokens;
  if (std::is_same_v<Layout, padded> || std::is_same_v<Layout, expert_slots>)
    rows = ranks * tokens * most;
  if constexpr (std::is_same_v<Layout, compact>)
    rows = align_up(rows + most * (layout.alignment - 1), layout.alignment);
  CHECK(map.row_capacity == rows);
  const bool staged = way.stages;
  const bool home = config.outputs == outputs_at::home && !staged;
  const std::size_t copies = by_rank && ranks < config.top_k ? ranks : config.top_k;
  // With slots, a rank is sent the counts for its own blocks only, after 48 bytes of verdict.
  std::size_t blocks = by_rank ? ranks : config.experts;
  if (in_slots) blocks = by_rank ? 1 : most;
  const std::size_t counts_end = align_up((in_slots ? 48 : 64) + map.count_bytes * blocks, 8);
  const std::size_t slot_bytes = by_rank ? 4 * config.top_k : 0;
  const std::size_t flights = config.in_flight;
  struct area {
    std::size_t at, bytes;
  };
  std::vector<area> areas{{map.counts, 2 * flights * ranks * (counts_end + config.note_bytes)},
                          {map.outbox, in_slots ? 2 * flights * ranks * counts_end : 0},
                          {map.refusals, 2 * flights * ranks * 48}};
  std::vector<area> of_set{{map.rows, rows * format.row_bytes},
                           {map.scales, rows * format.scale_bytes},
                           {map.origins, rows * 8},
                           {map.experts, rows * slot_bytes},
                           {map.weights, rows * slot_bytes},
                           {map.attachments[0], rows * config.attachments[0]},
                           {map.attachments[1], rows * config.attachments[1]},
                           {map.outputs, (home ? tokens * copies : rows) * config.hidden * 2},
                           {map.returned_attachments, tokens * copies * config.output_attachment},
                           {map.output_attachments, staged ? rows * config.output_attachment : 0}};
  if (staged) {
    // The first attachment is small enough to be packed, the second is not.
    REQUIRE(config.attachments[0] <= 256);
    REQUIRE(config.attachments[1] > 256);
    of_set.insert(of_set.end(),
                  {{map.staged.rows, tokens * format.row_bytes},
                   {map.staged.scales, tokens * format.scale_bytes},
                   {map.staged.attachments[1], tokens * config.attachments[1]},
                   {map.staged.packed_scales, tokens * copies * format.scale_bytes},
                   {map.staged.packed_origins, tokens * copies * 8},
                   {map.staged.packed_experts, tokens * copies * slot_bytes},
                   {map.staged.packed_weights, tokens * copies * slot_bytes},
                   {map.staged.packed_attachments[0], tokens * copies * config.attachments[0]},
                   {map.staged.returned, tokens * copies * config.hidden * 2}});
  }
  for (std::size_t set = 0; set < flights; ++set)
    for (const area& one : of_set) areas.push_back({one.at + set * map.set_bytes, one.bytes});
  std::size_t end = 0;
  for (const auto& [at, bytes] : areas) {
    CHECK(at >= end);
    CHECK(at % peerbus::cache_line_bytes == 0);
    end = at + bytes;
  }
  CHECK(map.total >= end);
  CHECK(map.total < end + peerbus::cache_line_bytes);
  CHECK(sum(map) == map.total);
  CHECK(map.touched(0, 0) <= map.sets + 2 * 4096);
  CHECK(map.touched(rows, tokens) >= map.total - map.refusals);
}

}  // namespace

TEST_CASE("areas are aligned, do not overlap, hold the worst case, and sum to the total") {
  for (const row_path_memory way : {by_stores, by_staged_puts})
    for (const outputs_at outputs : {outputs_at::expert, outputs_at::home})
      for (const std::size_t ranks : {1U, 3U, 8U, 320U})
        for (const std::size_t experts : {1U, 7U, 64U, 257U})
          for (const std::size_t hidden : {16U, 48U, 7168U})
            for (const std::size_t top_k : {1U, 8U, 32U})
              for (const std::size_t in_flight : {1U, 3U}) {
                const exchange_config config{.experts = experts,
                                             .hidden = hidden,
                                             .top_k = top_k,
                                             .max_tokens = 5,
                                             .in_flight = in_flight,
                                             .outputs = outputs,
                                             .attachments = {12, 260},
                                             .output_attachment = 28,
                                             .note_bytes = 20};
                check_areas(compact{}, config, ranks, way);
                check_areas(compact{.alignment = 128}, config, ranks, way);
                check_areas(padded{}, config, ranks, way);
                check_areas(rank_major{}, config, ranks, way);
                check_areas(slots{}, config, ranks, way);
                check_areas(expert_slots{}, config, ranks, way);
              }
}

TEST_CASE("touched counts each page once, and only what rows and outputs reach") {
  // 8 ranks, one expert each: as many slots of tokens at home as rows may arrive.
  exchange_config config{.experts = 8, .hidden = 2048, .top_k = 8, .max_tokens = 16};
  const memory_map there = map_of(config, 8, by_stores);
  config.outputs = outputs_at::home;
  const memory_map home = map_of(config, 8, by_stores);
  CHECK(home.output_rows == there.output_rows);
  // An output fills a page; the first begins in the middle of one.
  CHECK(there.touched(4, 16) - there.touched(4, 0) == 0);
  CHECK(there.touched(8, 0) - there.touched(4, 0) == (4 * 4096 + 2 * 4096));  // rows take half one
  CHECK(home.touched(4, 16) - home.touched(4, 8) == std::size_t{8} * 8 * 4096);
  CHECK(home.touched(8, 8) - home.touched(4, 8) == 2 * 4096);
  // A single huge page holds all of it, however many areas there are.
  CHECK(there.total < std::size_t{2} << 20);
  CHECK(there.touched(4, 16, std::size_t{2} << 20) == std::size_t{2} << 20);
  CHECK(home.touched(128, 16, std::size_t{2} << 20) == std::size_t{2} << 20);
  // Every batch has its own.
  config.in_flight = 3;
  const memory_map three = map_of(config, 8, by_stores);
  CHECK(three.touched(4, 16) - three.touched(4, 8) >= std::size_t{3} * (8 * 8 - 1) * 4096);
  // Staging is taken by the tokens that are sent.
  const memory_map staged = map_of(config, 8, by_staged_puts);
  CHECK(staged.touched(4, 1) < staged.touched(4, 16) - std::size_t{3} * 14 * 8 * 4096);
  CHECK(staged.touched(128, 16) <= align_up(staged.total, 4096));
}

TEST_CASE("counts travel as narrow as they may be") {
  CHECK(peerbus::moe::count_bytes_for(255) == 1);
  CHECK(peerbus::moe::count_bytes_for(256) == 2);
  CHECK(peerbus::moe::count_bytes_for(65535) == 2);
  CHECK(peerbus::moe::count_bytes_for(65536) == 4);
}

TEST_CASE("bytes on the wire per row") {
  CHECK(peerbus::moe::dispatch_bytes_per_row(int8_format(7168)) == 7168 + 4 + 8);
  CHECK(peerbus::moe::combine_bytes_per_row(7168) == 14336);
}

TEST_CASE("stream_from: a given value stays, the default is a rank's share of the largest cache") {
  using peerbus::moe::detail::stream_from;
  CHECK(stream_from({.stream_from = 0}, 2, 1) == 0);
  CHECK(stream_from({.stream_from = peerbus::moe::never_stream}, 2, 1) ==
        peerbus::moe::never_stream);
  const auto cache = peerbus::moe::detail::believable(peerbus::largest_cache());
  for (const std::size_t ranks : {1U, 2U, 100'000U}) {
    const std::size_t kept = cache.bytes / std::min(cache.cores, ranks) / 4 * 3;
    CHECK(stream_from({}, ranks, 1) == kept);
    CHECK(stream_from({}, ranks, 32) <= kept / 32);  // They share the caches of their core.
    CHECK(stream_from({}, ranks, 32) > kept / 33);
    CHECK(stream_from({.between = 1000}, ranks, 1) == kept - 1000);
    CHECK(stream_from({.between = std::size_t{1} << 40U}, ranks, 1) == 0);
    CHECK(stream_from({.stream_from = 5, .between = 3}, ranks, 1) == 5);
  }
}

TEST_CASE("a cache that no core can have is not believed") {
  using peerbus::moe::detail::believable;
  constexpr std::size_t mib = std::size_t{1} << 20U;
  CHECK(believable({64 * mib, 1}).bytes == 64 * mib);
  CHECK(believable({512 * mib, 8}).bytes == 512 * mib);
  for (const peerbus::shared_cache absurd :
       {peerbus::shared_cache{}, {260 * mib, 2}, {65 * mib, 1}}) {
    CHECK(believable(absurd).bytes == 32 * mib);
    CHECK(believable(absurd).cores == 8);
  }
}

}  // namespace memory_map_test
