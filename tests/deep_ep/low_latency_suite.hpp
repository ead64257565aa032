// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/compat/deep_ep.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/transport/concept.hpp>

#include "deep_ep/low_latency_oracle.hpp"
#include "deep_ep/low_latency_rows.hpp"
#include "support/oracle.hpp"
#include "support/ranks.hpp"

/// DeepEP's low-latency calls against the oracle, for all transports.
namespace low_latency_suite {

inline constexpr format all_formats[] = {format::bf16, format::fp8, format::rounded, format::ue8m0};

enum class ending { at_once, hook, event };

/// In which of the ways that DeepEP has a dispatch and its combine are done.
struct manner {
  ending dispatch = ending::at_once;
  ending combine = ending::at_once;
  bool zero_copy = false;
  bool own_out = false;     ///< combine writes into the caller's memory
  std::size_t row_gap = 0;  ///< channels between the rows that combine is given
  bool narrow_ids = false;  ///< int32
};

/// One that `seed` picks.
inline manner manner_of(std::uint64_t seed, bool zero_copy = false) {
  oracle::random numbers{seed + 11};
  return {.dispatch = static_cast<ending>(numbers.below(3)),
          .combine = static_cast<ending>(numbers.below(3)),
          .zero_copy = zero_copy && numbers.below(2) == 0,
          .own_out = numbers.below(2) == 0,
          .row_gap = numbers.below(2) * 8,
          .narrow_ids = numbers.below(2) == 0};
}

/// One dispatch and its combine, by one rank.
template <peerbus::transport Transport>
class flight {
 public:
  flight(deep_ep::buffer<Transport>& buffer, const batch& from, std::size_t rank, const manner& way)
      : buffer_{buffer}, from_{from}, rank_{rank}, way_{way} {
    const oracle::input& mine = from.inputs[rank];
    x_ = mine.tokens;
    ids_ = mine.experts;
    narrow_.assign(ids_.begin(), ids_.end());
    weights_ = mine.weights;
    const std::size_t local = experts_of(from.of, rank).size();
    for (std::size_t e = 0; e < local; ++e) stats_.push_back(static_cast<std::int32_t>(100 + e));
    waited_[0].resize(from.of.ranks, 5);
    waited_[1].resize(from.of.ranks, 6);
    const std::size_t rows = from.of.ranks * from.of.max_tokens;
    const std::size_t row = from.of.hidden + way.row_gap;
    outputs_.resize(local * rows * row);
    y_ = {outputs_.data(),
          deep_ep::dtype::bfloat16,
          {local, rows, from.of.hidden},
          {rows * row, row, 1}};
  }

  [[nodiscard]] deep_ep::low_latency_dispatch_args dispatch_args() {
    const world& of = from_.of;
    return {.x = deep_ep::view(x_, {tokens(), of.hidden}),
            .topk_idx = ids(),
            .num_max_dispatch_tokens_per_rank = of.max_tokens,
            .num_experts = of.experts,
            .cumulative_local_expert_recv_stats = deep_ep::view(stats_, {stats_.size()}),
            .dispatch_wait_recv_cost_stats = deep_ep::view(waited_[0], {of.ranks}),
            .use_fp8 = of.rows != format::bf16,
            .round_scale = of.rows == format::rounded || of.rows == format::ue8m0,
            .use_ue8m0 = of.rows == format::ue8m0,
            .async_finish = way_.dispatch == ending::event,
            .return_recv_hook = way_.dispatch == ending::hook};
  }

  void dispatch() {
    got_ = buffer_.low_latency_dispatch(dispatch_args());
    check_shapes(got_, from_, rank_);
    test::expect_equal(static_cast<bool>(got_.hook), way_.dispatch == ending::hook, "a hook");
    // The routing is the caller's again.
    std::ranges::fill(ids_, -9);
    std::ranges::fill(narrow_, -9);
    if (way_.dispatch == ending::at_once) forget_tokens();
  }
  /// The rows are there afterwards, and checked.
  void receive() {
    if (way_.dispatch == ending::hook) got_.hook();
    if (way_.dispatch == ending::event) got_.event.current_stream_wait();
    got_.event.current_stream_wait();  // Again, or for nothing.
    forget_tokens();
    check();
  }
  void check() {
    check_rows(got_, from_, rank_);
    const world& of = from_.of;
    for (std::size_t e = 0; e < stats_.size(); ++e)
      test::expect_equal(
          stats_[e],
          static_cast<std::int32_t>(100 + e) + got_.recv_count.template at<std::int32_t>(e),
          "cumulative_local_expert_recv_stats of ", e);
    for (std::size_t r = 0; r < of.ranks; ++r)
      test::expect(r == rank_ ? waited_[0][r] == 5 : waited_[0][r] >= 5, "no time less than none");
  }

  /// Each expert does something else to its rows.
  void run_experts() {
    const world& of = from_.of;
    const auto experts = experts_of(of, rank_);
    const std::size_t rows = of.ranks * of.max_tokens;
    const std::size_t row = of.hidden + (way_.zero_copy ? 0 : way_.row_gap);
    bf16* to = outputs_.data();
    if (way_.zero_copy) {
      const auto there = buffer_.get_next_low_latency_combine_buffer(got_.handle);
      y_ = there;
      to = there.template as<bf16>();
    }
    for (std::size_t e = 0; e < experts.size(); ++e)
      for (std::size_t i = 0; i < rows; ++i) {
        const std::span out{to + (e * rows + i) * row, row};
        // What is no row must not matter.
        std::ranges::fill(out, bf16::from_bits(0x7fc1));
        if (i >= static_cast<std::size_t>(got_.recv_count.template at<std::int32_t>(e))) continue;
        const auto values = read_row(got_, e, i);
        for (std::size_t h = 0; h < of.hidden; ++h)
          out[h] = oracle::apply(experts[e], h, values[h]);
      }
  }

  [[nodiscard]] deep_ep::low_latency_combine_args combine_args() {
    const world& of = from_.of;
    // As the dispatch was given; it has not kept the caller's.
    ids_ = from_.inputs[rank_].experts;
    narrow_.assign(ids_.begin(), ids_.end());
    deep_ep::low_latency_combine_args args{
        .x = y_,
        .topk_idx = ids(),
        .topk_weights = deep_ep::view(weights_, {tokens(), of.top_k}),
        .handle = got_.handle,
        .zero_copy = way_.zero_copy,
        .async_finish = way_.combine == ending::event,
        .return_recv_hook = way_.combine == ending::hook,
        .combine_wait_recv_cost_stats = deep_ep::view(waited_[1], {of.ranks})};
    if (way_.own_out) {
      out_.assign(tokens() * of.hidden, bf16::from_bits(0xdead));
      args.out = deep_ep::view(out_, {tokens(), of.hidden});
    }
    return args;
  }

  void combine() {
    back_ = buffer_.low_latency_combine(combine_args());
    // What is not handed over where it lies is the caller's again.
    std::ranges::fill(outputs_, bf16::from_bits(0xbeef));
    std::ranges::fill(ids_, -9);
  }
  /// The sums take the memory of the outputs that they are made of.
  void combine_in_place() {
    auto args = combine_args();
    args.out = deep_ep::view(std::span{outputs_}.first(tokens() * from_.of.hidden),
                             {tokens(), from_.of.hidden});
    back_ = buffer_.low_latency_combine(args);
    check_sums();
  }
  /// The sums are there afterwards, and checked.
  void finish() {
    if (way_.combine == ending::hook) back_.hook();
    if (way_.combine == ending::event) back_.event.current_stream_wait();
    back_.event.current_stream_wait();
    if (way_.own_out) test::expect(back_.combined_x.data() == out_.data(), "sums in `out`");
    check_sums();
    for (std::size_t r = 0; r < from_.of.ranks; ++r)
      test::expect(r == rank_ ? waited_[1][r] == 6 : waited_[1][r] >= 6, "no time less than none");
  }
  void check_sums() const {
    const world& of = from_.of;
    expect_shape(back_.combined_x,
                 peerbus::detail::concat("bfloat16 [", tokens(), ", ", of.hidden, "]"),
                 "combined_x");
    const auto given = sums();
    const auto expected = combined(from_, rank_);
    for (std::size_t i = 0; i < expected.size(); ++i)
      test::expect_equal(given[i].bits, expected[i].bits, "sum of token ", i / of.hidden,
                         ", channel ", i % of.hidden);
  }

  /// Another combine with the same handle, of outputs made anew.
  void combine_again(const manner& way) {
    way_ = way;
    std::ranges::fill(waited_[1], 6);
    const std::size_t local = experts_of(from_.of, rank_).size();
    const std::size_t rows = from_.of.ranks * from_.of.max_tokens;
    const std::size_t row = from_.of.hidden + way.row_gap;
    outputs_.assign(local * rows * row, bf16{});
    y_ = {outputs_.data(),
          deep_ep::dtype::bfloat16,
          {local, rows, from_.of.hidden},
          {rows * row, row, 1}};
    run_experts();
    combine();
    finish();
  }

  /// All of it.
  void fly() {
    dispatch();
    receive();
    run_experts();
    combine();
    finish();
  }

  [[nodiscard]] deep_ep::low_latency_dispatch_result& got() { return got_; }
  [[nodiscard]] deep_ep::low_latency_combine_result& back() { return back_; }
  [[nodiscard]] std::span<const bf16> sums() const {
    return std::as_const(back_.combined_x).template values<bf16>();
  }
  [[nodiscard]] std::span<const std::int64_t> waited(std::size_t combine) const {
    return waited_[combine];
  }

 private:
  [[nodiscard]] std::size_t tokens() const { return from_.inputs[rank_].count; }
  [[nodiscard]] deep_ep::const_tensor ids() {
    const world& of = from_.of;
    if (way_.narrow_ids) return deep_ep::view(narrow_, {tokens(), of.top_k});
    return deep_ep::view(ids_, {tokens(), of.top_k});
  }
  void forget_tokens() { std::ranges::fill(x_, bf16::from_bits(0xbeef)); }

  deep_ep::buffer<Transport>& buffer_;
  const batch& from_;
  std::size_t rank_;
  manner way_;
  std::vector<bf16> x_;
  std::vector<std::int64_t> ids_;
  std::vector<std::int32_t> narrow_;
  std::vector<float> weights_;
  std::vector<std::int32_t> stats_;
  std::vector<std::int64_t> waited_[2];
  deep_ep::low_latency_dispatch_result got_;
  std::vector<bf16> outputs_;
  deep_ep::const_tensor y_;
  std::vector<bf16> out_;
  deep_ep::low_latency_combine_result back_;
};

/// FNV-1a of what came home: no order of bits is alike.
inline std::uint64_t hash_of(std::span<const bf16> values) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const bf16 value : values) hash = (hash ^ value.bits) * 0x100000001b3U;
  return hash;
}

/// Starts `ranks` ranks with a buffer each and checks that all went well. Every other rank uses
/// streaming stores, which must change no byte.
template <class Group, class Body>
void with_buffers(std::size_t ranks, const deep_ep::buffer_options& options, Body body) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [&](auto& comm) {
    deep_ep::buffer_options own_options = options;  // Ranks may be threads that share `options`.
    if (comm.rank().index() % 2 == 0) own_options.stream_from = 0;
    deep_ep::buffer<typename Group::transport> buffer{comm, own_options};
    body(buffer, comm);
  });
  CHECK(worst_status == 0);
}

/// Each of `worlds` (of equally many ranks) once, on one buffer, in all manners as seeds have it.
template <class Group>
void check_worlds(std::span<const world> worlds, std::uint64_t seed, bool zero_copy = false) {
  std::vector<batch> batches;
  for (const world& of : worlds) batches.push_back(make_batch(of, seed + batches.size()));
  with_buffers<Group>(worlds.front().ranks, {.zero_copy = zero_copy},
                      [&](auto& buffer, auto& comm) {
                        std::uint64_t at = seed;
                        for (const batch& one : batches)
                          flight<typename Group::transport>{buffer, one, comm.rank().index(),
                                                            manner_of(at++, zero_copy)}
                              .fly();
                      });
}

}  // namespace low_latency_suite
