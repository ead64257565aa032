// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/communicator.hpp>
#include <peerbus/compat/cann.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/rank.hpp>

#include "deep_ep/cann_oracle.hpp"
#include "support/oracle.hpp"
#include "support/ranks.hpp"

/// CANN's operators against the oracle, for all transports.
namespace cann_suite {

namespace cann = peerbus::cann;
using oracle::cann::masks;
using oracle::cann::world;
using peerbus::bf16;

inline cann::attributes attributes_of(const world& of, std::size_t max_tokens) {
  const auto number = [](std::size_t value) { return static_cast<std::int64_t>(value); };
  return {.hidden = of.hidden,
          .top_k = of.top_k,
          .ep_world_size = number(of.ranks),
          .moe_expert_num = number(of.moe),
          .shared_expert_num = number(of.shared),
          .shared_expert_rank_num = number(of.shared_ranks),
          .global_bs = number(max_tokens * of.ranks),
          .zero_expert_num = number(of.zero),
          .copy_expert_num = number(of.copy),
          .const_expert_num = number(of.constant)};
}

/// What all ranks put into one dispatch; every rank knows all of it.
struct batch {
  std::vector<oracle::cann::input> inputs;
  std::uint64_t seed = 0;
};

/// Uneven and empty batches, and masks of all kinds, as the seed has it.
inline batch make_batch(const world& of, std::size_t max_tokens, std::uint64_t seed) {
  batch made{{}, seed};
  oracle::random numbers{seed * 31 + 5};
  const bool with_shared_x = of.shared_ranks == 0 && numbers.below(2) == 0;
  for (std::size_t r = 0; r < of.ranks; ++r) {
    const std::size_t count = numbers.below(4) == 0 ? 0 : numbers.below(max_tokens + 1);
    const auto kind = static_cast<masks>(numbers.below(3));
    made.inputs.push_back(oracle::cann::make_input(of, r, count, kind, with_shared_x, seed));
  }
  return made;
}

/// An array of bool that a span can view.
class bools {
 public:
  explicit bools(std::size_t count) : count_{count}, values_{std::make_unique<bool[]>(count)} {}
  [[nodiscard]] std::span<bool> all() const noexcept { return {values_.get(), count_}; }

 private:
  std::size_t count_;
  std::unique_ptr<bool[]> values_;
};

/// The mask as a caller would hold it: none, [Bs] or [Bs, K].
inline bools mask_of(const world& of, const oracle::cann::input& mine) {
  if (mine.kind == masks::none) return bools{0};
  const std::size_t step = mine.kind == masks::tokens ? of.top_k : 1;
  bools result{mine.active.size() / step};
  for (std::size_t i = 0; i < result.all().size(); ++i) result.all()[i] = mine.active[i * step];
  return result;
}

template <class T>
void expect_equal_arrays(std::span<const T> given, const std::vector<T>& expected,
                         const std::string& what) {
  test::expect_equal(given.size(), expected.size(), "size of ", what);
  for (std::size_t i = 0; i < expected.size(); ++i)
    test::expect_equal(given[i], expected[i], what, "[", i, "]");
}

/// Checks all that a dispatch brought to `rank`.
template <class Codec>
void check_result(const cann::dispatch_result<Codec>& got, const world& of, const batch& from,
                  std::size_t rank, bool sums) {
  std::vector<std::int32_t> idx;
  std::vector<std::int32_t> counts;
  std::vector<std::int64_t> nums;
  std::vector<std::byte> rows;
  std::vector<std::byte> scales;
  std::int32_t before = 0;
  for (std::size_t e = 0; e < of.local(rank); ++e) {
    const auto expected = oracle::cann::rows_of(of, from.inputs, rank, e);
    for (std::size_t r = 0; r < of.ranks; ++r)
      counts.push_back(before + static_cast<std::int32_t>(std::count_if(
                                    expected.begin(), expected.end(),
                                    [&](const auto& row) { return row.source <= r; })));
    before += static_cast<std::int32_t>(expected.size());
    nums.push_back(sums ? before : static_cast<std::int64_t>(expected.size()));
    for (const auto& [source, token, slot] : expected) {
      for (const std::size_t part : {source, token, slot})
        idx.push_back(static_cast<std::int32_t>(part));
      const auto row = oracle::codec_of<Codec>::encode(
          oracle::cann::row_of(from.inputs[source].x, of.hidden, token));
      rows.insert(rows.end(), row.bytes.begin(), row.bytes.end());
      scales.insert(scales.end(), row.scales.begin(), row.scales.end());
    }
  }
  expect_equal_arrays<std::int64_t>(got.expert_token_nums, nums, "expert_token_nums");
  expect_equal_arrays<std::int32_t>(got.ep_recv_counts, counts, "ep_recv_counts");
  expect_equal_arrays<std::int32_t>(got.expand_idx, idx, "expand_idx");
  const auto same = [](auto given, const std::vector<std::byte>& expected, const char* what) {
    test::expect(std::ranges::equal(std::as_bytes(given), expected), what, " as expected");
  };
  same(got.expand_x, rows, "expand_x");
  same(got.dynamic_scales, scales, "dynamic_scales");
  test::expect_equal(got.expert_out.size(), idx.size() / 3 * of.hidden, "size of expert_out");
}

/// What the experts of `rank` make of the rows, into `out`, [A, H]: from what was received alone.
template <class Codec>
void run_experts(const cann::dispatch_result<Codec>& got, const world& of, std::size_t rank,
                 std::span<bf16> out) {
  std::vector<float> values(of.hidden);
  std::size_t row = 0;
  for (std::size_t e = 0; e < of.local(rank); ++e) {
    const auto& block = got.rows.experts()[e];
    for (std::size_t i = 0; i < block.count(); ++i, ++row) {
      block.decode(i, values);
      for (std::size_t h = 0; h < of.hidden; ++h)
        out[row * of.hidden + h] =
            oracle::apply(oracle::cann::function_of(of, rank, e), h, values[h]);
    }
  }
}

/// One rank's view of one pair of operators.
template <class Operators, class Codec>
class user {
 public:
  user(Operators& operators, const world& of, std::size_t rank)
      : operators_{operators}, of_{of}, rank_{rank} {}

  [[nodiscard]] cann::dispatch_result<Codec> dispatch(const batch& from) {
    const auto& mine = from.inputs[rank_];
    const bools mask = mask_of(of_, mine);
    // Gone on return: dispatch keeps nothing of the caller's.
    const auto x = mine.x;
    const auto ids = mine.ids;
    const bool sums = from.seed % 2 == 0;
    const auto got = operators_.dispatch({.x = x,
                                          .expert_ids = ids,
                                          .x_active_mask = mask.all(),
                                          .expert_token_nums_type = sums ? 0 : 1});
    check_result(got, of_, from, rank_, sums);
    return got;
  }

  /// The arguments of a combine that can be done, but for `out`.
  [[nodiscard]] cann::combine_arguments<Codec> arguments(const cann::dispatch_result<Codec>& got,
                                                         const batch& from) const {
    const auto& mine = from.inputs[rank_];
    return {.dispatched = got,
            .expert_scales = mine.scales,
            .shared_expert_x = mine.shared_x,
            .ori_x = mine.x,
            .const_expert_alpha_1 = mine.alpha_1,
            .const_expert_alpha_2 = mine.alpha_2,
            .const_expert_v = mine.v};
  }

  /// Runs the experts and combines, in place or from an array of the caller's, with and without
  /// what combine may be told again.
  void finish(const cann::dispatch_result<Codec>& got, const batch& from) {
    const auto& mine = from.inputs[rank_];
    std::vector<bf16> own;
    auto given = arguments(got, from);
    const bools mask = mask_of(of_, mine);
    if (from.seed % 3 == 0) {
      own.resize(got.expert_out.size());
      run_experts(got, of_, rank_, own);
      given.expand_x = own;
      given.expert_ids = mine.ids;
      given.x_active_mask = mask.all();
    } else {
      run_experts(got, of_, rank_, got.expert_out);
      if (from.seed % 3 == 1) given.expand_x = got.expert_out;
    }
    std::vector<bf16> out(mine.x.size(), bf16::from_bits(0xdead));
    given.out = out;
    operators_.combine(given);
    const auto expected = oracle::cann::combined<Codec>(of_, mine, rank_);
    for (std::size_t i = 0; i < out.size(); ++i)
      test::expect_equal(out[i].bits, expected[i].bits, "token ", i / of_.hidden, ", channel ",
                         i % of_.hidden);
  }

 private:
  Operators& operators_;
  const world& of_;
  std::size_t rank_;
};

/// `rounds` batches, `in_flight` of them dispatched before the first is combined, in another order.
template <class Group, class Codec>
void check(const world& of, std::size_t max_tokens, std::size_t rounds, std::size_t in_flight = 1,
           std::uint64_t first_seed = 0) {
  CAPTURE(of.ranks);
  CAPTURE(of.top_k);
  CAPTURE(of.moe);
  const int worst_status = Group::run(of.ranks, [&](auto& comm) {
    auto attributes = attributes_of(of, max_tokens);
    attributes.in_flight = in_flight;
    cann::moe_distribute operators{comm, attributes, oracle::codec_of<Codec>::make()};
    const std::size_t rank = comm.rank().index();
    user<decltype(operators), Codec> me{operators, of, rank};
    for (std::uint64_t seed = first_seed; seed < first_seed + rounds; seed += in_flight) {
      std::vector<batch> batches;
      std::vector<cann::dispatch_result<Codec>> got;
      for (std::size_t i = 0; i < in_flight; ++i) {
        batches.push_back(make_batch(of, max_tokens, seed + i));
        got.push_back(me.dispatch(batches.back()));
      }
      // A later dispatch left the earlier ones' results alone.
      for (std::size_t i = 0; i < in_flight; ++i)
        check_result(got[i], of, batches[i], rank, batches[i].seed % 2 == 0);
      for (std::size_t i = 0; i < in_flight; ++i) {
        const std::size_t next = (i * 2 + 1) % in_flight;  // of three: 1, 0, 2
        me.finish(got[next], batches[next]);
      }
    }
  });
  CHECK(worst_status == 0);
}

}  // namespace cann_suite
