// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include <peerbus/compat/deep_ep.hpp>
#include <peerbus/core/bf16.hpp>

#include "deep_ep/low_latency_oracle.hpp"
#include "deep_ep/low_latency_suite.hpp"
#include "support/arithmetic.hpp"
#include "support/logfmt.hpp"
#include "support/oracle.hpp"
#include "support/ranks.hpp"
#include "support/repetitions.hpp"
#include "support/sanitized.hpp"

/// What every transport must do, whatever the number of ranks.
namespace low_latency_cases {

using namespace low_latency_suite;

/// Every format with every kind of contents, counts and routing, one after the other on one buffer.
inline std::vector<world> various(std::size_t ranks) {
  std::vector<world> made;
  const std::array<std::size_t, 4> experts{ranks, 2 * ranks + 1,
                                           std::max<std::size_t>(ranks, 2) - 1, 5 * ranks};
  const std::array<std::size_t, 4> hidden{256, 384, 128, 640};
  std::size_t i = 0;
  for (const contents tokens : {contents::constant, contents::normal, contents::lattice})
    for (const format rows : all_formats) {
      world of{.ranks = ranks, .experts = experts[(i + i / 4) % 4]};
      of.hidden = hidden[(i + 3 * (i / 4) + 1) % 4];
      of.top_k = std::min<std::size_t>(of.experts, 1 + i % 5);
      of.max_tokens = 3 + 2 * i % 7;
      of.rows = rows;
      of.tokens = tokens;
      of.counts = static_cast<sizes>((i / 4 + i) % 3);
      of.routes = static_cast<ways>((i * 2 + i / 4) % 5);
      made.push_back(of);
      ++i;
    }
  // Hidden sizes that only bf16 has, and nobody with anything to send.
  for (const std::size_t channels : {8U, 16U, 2880U}) {
    world of{.ranks = ranks, .experts = 3 * ranks, .hidden = channels, .top_k = 2, .max_tokens = 4};
    of.routes = ways::holes;
    made.push_back(of);
  }
  world nothing{.ranks = ranks, .experts = 3 * ranks, .hidden = 128, .top_k = 2, .max_tokens = 4};
  nothing.counts = sizes::all_none;
  made.push_back(nothing);
  nothing.rows = format::ue8m0;
  made.push_back(nothing);
  return made;
}

/// The way in which DeepEP's own test looks at it: identical channels, the token's index in the
/// last 128, ten random entries of -1, each dispatch once or twice, experts that change nothing.
template <class Group>
void check_as_deepep_does(std::size_t ranks) {
  for (const format rows : all_formats) {
    world of{.ranks = ranks, .experts = 4 * ranks, .hidden = 512, .top_k = 4, .max_tokens = 16};
    of.rows = rows;
    of.tokens = contents::constant;
    batch from = make_batch(of, 3);
    oracle::random numbers{9};
    for (std::size_t r = 0; r < ranks; ++r) {
      for (float& weight : from.inputs[r].weights) weight = std::fabs(weight);
      for (std::size_t i = 0; i < 10; ++i)
        from.inputs[r].experts[numbers.below(from.inputs[r].experts.size())] = -1;
      from.routed[r] = from.inputs[r].experts;
    }
    for (const std::size_t times : {1U, 2U})
      with_buffers<Group>(ranks, {}, [&](auto& buffer, auto& comm) {
        const std::size_t rank = comm.rank().index();
        const auto experts = experts_of(of, rank);
        if (times == 2) flight<typename Group::transport>{buffer, from, rank, {}}.dispatch();
        flight<typename Group::transport> one{buffer, from, rank, {}};
        one.dispatch();
        const auto& got = one.got();
        std::vector<bf16> y(experts.size() * ranks * of.max_tokens * of.hidden);
        for (std::size_t e = 0; e < experts.size(); ++e) {
          const auto count = static_cast<std::size_t>(got.recv_count.template at<std::int32_t>(e));
          for (std::size_t i = 0; i < count; ++i) {
            const auto values = read_row(got, e, i);
            const auto constant = std::span{values}.first(of.hidden - 128);
            const auto [least, most] = std::ranges::minmax(constant);
            test::expect_equal(least, most, "the channels of a row");
            std::size_t source = 0;
            std::size_t begin = 0;
            for (; source < ranks; ++source) {
              const auto range = got.handle.layout_range.template at<std::int64_t>(e, source);
              begin = static_cast<std::size_t>(range >> 32);
              if (i < begin + static_cast<std::size_t>(range & 0xffff'ffff)) break;
            }
            test::expect(i >= begin && source < ranks, "a row in the range of its source");
            const auto token =
                static_cast<float>(got.handle.src_info.template at<std::int32_t>(e, i));
            const bool exact = rows == format::bf16 || rows == format::fp8;
            const float identity = static_cast<float>(source) - 128.0F;
            for (std::size_t h = 0; h < of.hidden && exact; ++h)
              test::expect_equal(oracle::widen(oracle::round(values[h])),
                                 h + 128 < of.hidden ? identity : token, "channel ", h);
            for (std::size_t h = 0; h < of.hidden; ++h)
              y[((e * ranks * of.max_tokens) + i) * of.hidden + h] = oracle::round(values[h]);
          }
        }
        auto args = one.combine_args();
        const deep_ep::const_tensor outputs =
            deep_ep::view(y, {experts.size(), ranks * of.max_tokens, of.hidden});
        args.x = outputs;
        const auto back = buffer.low_latency_combine(args);
        const auto& mine = from.inputs[rank];
        std::vector<double> given;
        std::vector<double> expected;
        std::vector<double> modelled;
        for (std::size_t t = 0; t < mine.count; ++t) {
          double weight = 0;
          for (std::size_t k = 0; k < of.top_k; ++k)
            if (mine.experts[t * of.top_k + k] != -1)
              weight += static_cast<double>(mine.weights[t * of.top_k + k]);
          for (std::size_t h = 0; h < of.hidden; ++h) {
            given.push_back(
                static_cast<double>(oracle::widen(back.combined_x.template at<bf16>(t, h))));
            expected.push_back(weight *
                               static_cast<double>(oracle::widen(mine.tokens[t * of.hidden + h])));
            modelled.push_back(weight * static_cast<double>(from.rows[rank][t].values[h]));
          }
        }
        const double off = oracle::low_latency::calc_diff(given, expected);
        // Rounded scales lose more than DeepEP's tolerance allows, so its test skips them.
        if (rows == format::bf16) test::expect(off < 1e-5, "calc_diff below 1e-5, is ", off);
        if (rows == format::fp8) test::expect(off < 9e-4, "calc_diff below 9e-4, is ", off);
        const double worst = oracle::low_latency::element_diff(given, modelled);
        test::expect(worst < 8.0 / 256, "no element off by 8 x 2^-8, is ", worst);
      });
  }
}

/// The tokens at most change from call to call, and the buffer is cleaned now and then. A batch of
/// one shape waits while others of other shapes, some of them new, come and go.
template <class Group>
void check_changing_shapes(std::size_t ranks) {
  std::vector<batch> batches;
  for (const std::size_t tokens : {8U, 16U, 8U, 4U, 16U, 8U}) {
    world of{.ranks = ranks, .experts = 2 * ranks, .hidden = 256, .top_k = 2};
    of.max_tokens = tokens;
    of.rows = all_formats[batches.size() % 2];
    of.counts = sizes::fewer;
    batches.push_back(make_batch(of, 40 + batches.size()));
  }
  with_buffers<Group>(ranks, {}, [&](auto& buffer, auto& comm) {
    const auto fly = [&](const batch& from) {
      flight<typename Group::transport>{buffer, from, comm.rank().index(), {}}.fly();
    };
    flight<typename Group::transport> waits{
        buffer, batches[0], comm.rank().index(), {ending::hook, ending::hook}};
    waits.dispatch();
    fly(batches[1]);
    fly(batches[2]);
    waits.receive();
    fly(batches[3]);
    waits.run_experts();
    waits.combine();
    fly(batches[4]);
    fly(batches[5]);
    waits.finish();
    for (const bool clean : {false, true, true})
      for (const batch& one : batches) {
        if (clean)
          buffer.clean_low_latency_buffer(one.of.max_tokens, one.of.hidden, one.of.experts);
        fly(one);
      }
  });
}

/// `in_flight` dispatches before the first combine, received and combined in another order, with
/// and without hooks.
template <class Group>
void check_in_flight(std::size_t ranks, std::size_t in_flight, bool zero_copy) {
  std::vector<batch> batches;
  for (std::size_t i = 0; i < 3 * in_flight; ++i) {
    world of{.ranks = ranks, .experts = 3 * ranks, .hidden = 128, .top_k = 3, .max_tokens = 5};
    of.rows = zero_copy ? format::fp8 : format::bf16;
    of.counts = static_cast<sizes>(i % 3);
    of.routes = static_cast<ways>(i % 4);
    batches.push_back(make_batch(of, 70 + i));
  }
  with_buffers<Group>(ranks, {.in_flight = in_flight, .zero_copy = zero_copy},
                      [&](auto& buffer, auto& comm) {
                        for (std::size_t first = 0; first < batches.size(); first += in_flight) {
                          std::deque<flight<typename Group::transport>> all;
                          for (std::size_t i = 0; i < in_flight; ++i) {
                            auto way = manner_of(first + i, zero_copy);
                            if (first == in_flight) way.dispatch = way.combine = ending::hook;
                            all.emplace_back(buffer, batches[first + i], comm.rank().index(), way);
                            all.back().dispatch();
                          }
                          for (auto& one : all) one.receive();
                          for (auto& one : all) one.check();  // A later one left it alone.
                          // Of three: 1, 2, 0.
                          const auto at = [&](std::size_t i) -> auto& {
                            return all[(i + in_flight / 2) % in_flight];
                          };
                          for (std::size_t i = 0; i < in_flight; ++i) {
                            at(i).run_experts();
                            at(i).combine();
                          }
                          for (std::size_t i = 0; i < in_flight; ++i) at(i).finish();
                          for (auto& one : all) one.check_sums();
                        }
                      });
}

/// The same again and again gives the same bytes, on two buffers, with dispatches that nobody
/// combines in between, so that every batch set sees it.
template <class Group>
void check_repeats(std::size_t ranks) {
  world of{.ranks = ranks, .experts = 2 * ranks + 1, .hidden = 256, .top_k = 2, .max_tokens = 6};
  of.rows = format::fp8;
  of.routes = ways::zipf;
  const batch from = make_batch(of, 8);
  with_buffers<Group>(ranks, {}, [&](auto& buffer, auto& comm) {
    using one_flight = flight<typename Group::transport>;
    deep_ep::buffer<typename Group::transport> other{comm};
    const std::size_t rank = comm.rank().index();
    std::uint64_t first = 0;
    for (std::size_t i = 0; i < test::repetitions(20, 6); ++i) {
      for (std::size_t dropped = 0; dropped < i % 3; ++dropped) {
        one_flight lost{buffer, from, rank, {}};
        lost.dispatch();
        lost.check();
      }
      one_flight one{i % 4 == 3 ? other : buffer, from, rank, manner_of(i)};
      one.fly();
      const std::uint64_t hash = hash_of(one.sums());
      if (i == 0) first = hash;
      test::expect_equal(hash, first, "hash of repeat ", i);
    }
  });
}

/// A handle is a plan: DeepEP's own test combines twice with one, from memory of its own and from
/// the buffer's. Each rank is ahead of the others at another time.
template <class Group>
void check_combines_again(std::size_t ranks) {
  world of{.ranks = ranks, .experts = 2 * ranks, .hidden = 256, .top_k = 2, .max_tokens = 5};
  of.rows = format::fp8;
  of.routes = ways::holes;
  const batch from = make_batch(of, 44);
  const batch between = make_batch(of, 45);
  with_buffers<Group>(ranks, {.zero_copy = true}, [&](auto& buffer, auto& comm) {
    using one_flight = flight<typename Group::transport>;
    const std::size_t rank = comm.rank().index();
    for (std::uint64_t round = 0; round < 4; ++round) {
      one_flight one{buffer, from, rank, manner_of(round)};
      one.fly();
      for (std::uint64_t again = 0; again < 6; ++again) {
        manner way = manner_of(10 * round + again, true);
        way.zero_copy = again % 2 == 0;
        one.combine_again(way);
        // Of two dispatches in flight, one comes in between.
        if (again == 2) one_flight{buffer, between, rank, manner_of(again)}.fly();
      }
    }
  });
}

/// What combine must give to `rank` if all ranks, or only odd ones, use LogFMT.
inline std::vector<bf16> combined_by_logfmt(const batch& from, std::size_t rank, bool only_odd) {
  const oracle::input& mine = from.inputs[rank];
  const auto owner = oracle::owners(from.of.plain());
  std::vector<bf16> result;
  for (std::size_t t = 0; t < mine.count; ++t) {
    std::vector<float> sums(from.of.hidden);
    for (std::size_t k = 0; k < from.of.top_k; ++k) {
      const std::size_t slot = t * from.of.top_k + k;
      const std::int64_t id = from.routed[rank][slot];
      if (id == -1) continue;
      const auto expert = static_cast<std::size_t>(id);
      std::vector<bf16> output(from.of.hidden);
      oracle::apply(expert, from.rows[rank][t].values, output);
      if (!only_odd || owner[expert] % 2 == 1) output = test::through_logfmt(output);
      for (std::size_t i = 0; i < sums.size(); ++i)
        sums[i] = std::fma(mine.weights[slot], static_cast<float>(output[i]), sums[i]);
    }
    for (const float sum : sums) result.emplace_back(sum);
  }
  return result;
}

/// `use_logfmt`, on all ranks and on some, in all ways to end and with every format of rows.
template <class Group>
void check_logfmt(std::size_t ranks) {
  std::vector<batch> batches;
  for (const format rows : all_formats) {
    world of{.ranks = ranks, .experts = 2 * ranks, .hidden = 640, .top_k = 2, .max_tokens = 5};
    of.rows = rows;
    of.tokens = contents::normal;
    of.routes = ways::holes;
    batches.push_back(make_batch(of, 33));
  }
  with_buffers<Group>(ranks, {}, [&](auto& buffer, auto& comm) {
    const std::size_t rank = comm.rank().index();
    std::uint64_t seed = 0;
    for (const batch& from : batches)
      for (const bool only_odd : {false, true}) {
        flight<typename Group::transport> one{buffer, from, rank, manner_of(++seed)};
        one.dispatch();
        one.receive();
        one.run_experts();
        auto args = one.combine_args();
        args.use_logfmt = !only_odd || rank % 2 == 1;
        one.back() = buffer.low_latency_combine(args);
        if (one.back().hook) one.back().hook();
        one.back().event.current_stream_wait();
        const auto given = one.sums();
        const auto expected = combined_by_logfmt(from, rank, only_odd);
        for (std::size_t i = 0; i < expected.size(); ++i)
          test::expect_equal(given[i].bits, expected[i].bits, "sum of token ", i / 640,
                             ", channel ", i % 640);
      }
  });
}

/// What a rank masks it does not send to, and combines as if it had not been named; the masked
/// rank's own tokens still arrive.
template <class Group>
void check_masks(std::size_t ranks) {
  world of{.ranks = ranks, .experts = 2 * ranks, .hidden = 128, .top_k = 2, .max_tokens = 6};
  of.rows = format::fp8;
  const batch open = make_batch(of, 21);
  // Each rank masks the next one; then rank 0 everybody, itself too.
  batch next = open;
  for (std::size_t r = 0; r < ranks; ++r) next.mask(r, (r + 1) % ranks);
  batch all = open;
  for (std::size_t r = 0; r < ranks; ++r) all.mask(0, r);
  with_buffers<Group>(ranks, {.enable_shrink = true}, [&](auto& buffer, auto& comm) {
    const std::size_t rank = comm.rank().index();
    std::vector<std::int32_t> status(ranks, -1);
    const auto fly = [&](const batch& from, std::uint64_t seed) {
      flight<typename Group::transport>{buffer, from, rank, manner_of(seed)}.fly();
    };
    const auto expect_status = [&](auto&& masked) {
      buffer.low_latency_query_mask_buffer(deep_ep::view(status, {ranks}));
      for (std::size_t r = 0; r < ranks; ++r)
        test::expect_equal(status[r], masked(r) ? 1 : 0, "mask of rank ", r);
    };
    expect_status([](std::size_t) { return false; });
    fly(open, 0);
    buffer.low_latency_update_mask_buffer((rank + 1) % ranks, true);
    expect_status([&](std::size_t r) { return r == (rank + 1) % ranks; });
    fly(next, 1);
    buffer.low_latency_update_mask_buffer((rank + 1) % ranks, false);
    expect_status([](std::size_t) { return false; });
    fly(open, 2);
    for (std::size_t r = 0; r < ranks && rank == 0; ++r)
      buffer.low_latency_update_mask_buffer(r, true);
    expect_status([&](std::size_t) { return rank == 0; });
    fly(all, 3);
    // A mask that comes after the dispatch is for the next one.
    flight<typename Group::transport> before{buffer, all, rank, {}};
    before.dispatch();
    buffer.low_latency_clean_mask_buffer();
    before.receive();
    before.run_experts();
    before.combine();
    before.finish();
    expect_status([](std::size_t) { return false; });
    fly(open, 4);
  });
}

/// Normal mode between the low-latency calls of one buffer: also between dispatch and combine.
template <class Group>
void check_beside_normal(std::size_t ranks) {
  world of{.ranks = ranks, .experts = 2 * ranks, .hidden = 128, .top_k = 2, .max_tokens = 6};
  of.rows = format::ue8m0;
  of.counts = sizes::some_none;
  const batch from = make_batch(of, 33);
  with_buffers<Group>(ranks, {.num_max_tokens_per_rank = 32}, [&](auto& buffer, auto& comm) {
    const std::size_t rank = comm.rank().index();
    const std::size_t tokens = 9 + rank;
    std::vector<bf16> x(tokens * of.hidden);
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] = oracle::round(static_cast<float>(rank + 1) + static_cast<float>(i % 64) / 64.0F);
    std::vector<std::int64_t> ids(tokens);
    std::vector<float> weights(tokens, 0.5F);
    for (std::size_t t = 0; t < tokens; ++t)
      ids[t] = static_cast<std::int64_t>((rank + 3 * t) % of.experts);
    for (std::uint64_t i = 0; i < 4; ++i) {
      flight<typename Group::transport> one{buffer, from, rank, manner_of(i)};
      one.dispatch();
      const auto layout = buffer.get_dispatch_layout(deep_ep::view(ids, {tokens, 1}), of.experts);
      const auto got = buffer.dispatch({.x = deep_ep::view(x, {tokens, of.hidden}),
                                        .num_tokens_per_rank = layout.num_tokens_per_rank,
                                        .is_token_in_rank = layout.is_token_in_rank,
                                        .num_tokens_per_expert = layout.num_tokens_per_expert,
                                        .topk_idx = deep_ep::view(ids, {tokens, 1}),
                                        .topk_weights = deep_ep::view(weights, {tokens, 1})});
      one.receive();
      const auto rows = got.recv_x.template values<bf16>();
      const std::vector<bf16> y{rows.begin(), rows.end()};
      one.run_experts();
      one.combine();
      const auto back = buffer.combine(
          {.x = deep_ep::view(y, {got.recv_x.size(0), of.hidden}), .handle = got.handle});
      one.finish();
      // Each token went to one rank and came back as it was.
      test::expect(std::ranges::equal(back.combined_x.template values<bf16>(), x),
                   "normal mode's tokens come back");
    }
  });
}

}  // namespace low_latency_cases

/// Defines the test cases that low-latency calls of all kinds of groups pass, for `Group`.
#define PEERBUS_TEST_LOW_LATENCY(Group)                                                            \
  TEST_CASE("low latency: every format, contents, counts and routing") {                           \
    for (std::size_t ranks = 1; ranks <= 8; ++ranks) {                                             \
      low_latency_suite::check_worlds<Group>(low_latency_cases::various(ranks), ranks);            \
      low_latency_suite::check_worlds<Group>(low_latency_cases::various(ranks), 50 + ranks, true); \
    }                                                                                              \
  }                                                                                                \
  TEST_CASE("low latency: as DeepEP's own test looks at it") {                                     \
    for (const std::size_t ranks : test::sizes_for<Group>({1, 2, 3, 8}))                           \
      low_latency_cases::check_as_deepep_does<Group>(ranks);                                       \
  }                                                                                                \
  TEST_CASE("low latency: other shapes in between, cleaned or not") {                              \
    for (const std::size_t ranks : {1U, 2U, 5U})                                                   \
      low_latency_cases::check_changing_shapes<Group>(ranks);                                      \
  }                                                                                                \
  TEST_CASE("low latency: batches in flight") {                                                    \
    for (const std::size_t ranks : test::sizes_for<Group>({1, 2, 3, 7}))                           \
      for (const std::size_t in_flight : {1U, 2U, 3U, 5U})                                         \
        for (const bool zero_copy : {false, true})                                                 \
          low_latency_cases::check_in_flight<Group>(ranks, in_flight, zero_copy);                  \
  }                                                                                                \
  TEST_CASE("low latency: repeats, two buffers, dispatches without a combine") {                   \
    for (const std::size_t ranks : test::sizes_for<Group>({1, 2, 6}))                              \
      low_latency_cases::check_repeats<Group>(ranks);                                              \
  }                                                                                                \
  TEST_CASE("low latency: a handle is combined again and again") {                                 \
    for (const std::size_t ranks : {1U, 2U, 5U})                                                   \
      low_latency_cases::check_combines_again<Group>(ranks);                                       \
  }                                                                                                \
  TEST_CASE("low latency: masked ranks") {                                                         \
    for (const std::size_t ranks : {1U, 2U, 5U}) low_latency_cases::check_masks<Group>(ranks);     \
  }                                                                                                \
  TEST_CASE("low latency: beside normal mode") {                                                   \
    for (const std::size_t ranks : {1U, 3U}) low_latency_cases::check_beside_normal<Group>(ranks); \
  }
