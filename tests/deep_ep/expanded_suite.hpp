// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/compat/deep_ep/elastic_buffer.hpp>
#include <peerbus/compat/deep_ep/tensor.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/fp8.hpp>

#include "deep_ep/deep_ep_oracle.hpp"
#include "support/ranks.hpp"

/// The expanded form of DeepEP V2, for any group of ranks.
namespace expanded {

using oracle::deep_ep::batch;
using oracle::deep_ep::pattern;
using oracle::deep_ep::problem;
using peerbus::bf16;
using peerbus::fp8_e4m3;
namespace deep_ep = peerbus::deep_ep;

/// How scales are given.
enum class scales : std::uint8_t { by_rows, by_columns, of_a_byte };

struct form {
  bool codes = false;  ///< rows of fp8 codes with scales, otherwise bf16
  bool weighted = true;
  std::size_t alignment = 1;
  bool zero_padding = false;
  std::size_t biases = 0;
  bool async = false;
  scales scale = scales::by_rows;
  bool knows_counts = true;
  std::size_t most = 24;  ///< B, the most tokens of a rank that there must be memory for
  bool bounded = false;   ///< whether the dispatch states it
};

/// A row that must come, and whose slot it is.
struct row {
  std::size_t source;
  std::size_t token;
  std::size_t slot;
};

/// The rows of one expert, in order.
inline std::vector<row> rows_of(const problem& p, std::size_t expert) {
  std::vector<row> rows;
  for (std::size_t source = 0; source < p.of.ranks; ++source)
    for (std::size_t t = 0; t < p.ranks[source].tokens; ++t)
      for (std::size_t k = 0; k < p.of.top_k; ++k)
        if (p.ranks[source].ids[t * p.of.top_k + k] == static_cast<std::int64_t>(expert))
          rows.push_back({source, t, k});
  return rows;
}

inline float value_of(std::size_t source, std::size_t token, std::size_t channel) {
  const auto mixed = (source * 131 + token * 17 + channel * 19) % 257;
  return (static_cast<float>(mixed) - 128.0F) / 64.0F;
}
inline std::uint8_t code_of(std::size_t source, std::size_t token, std::size_t channel) {
  return static_cast<std::uint8_t>((source * 7 + token * 13 + channel * 29) % 251);
}
inline float scale_of(std::size_t source, std::size_t token, std::size_t group) {
  return static_cast<float>(1 + source * 10000 + token * 10 + group);
}
inline std::int8_t narrow_scale_of(std::size_t source, std::size_t token, std::size_t group) {
  return static_cast<std::int8_t>((source * 31 + token * 7 + group) % 127);
}
/// What an expert makes of a row: different for each of both.
inline bf16 output_of(std::size_t expert, const row& from, std::size_t channel) {
  return bf16{value_of(from.source, from.token, channel) *
                  (1.0F + 0.0625F * static_cast<float>(expert)) +
              0.01F * static_cast<float>(expert)};
}
inline bf16 bias_of(std::size_t which, std::size_t token, std::size_t channel) {
  return bf16{static_cast<float>((token * 3 + channel * (which + 1)) % 31) * 0.37F};
}

template <class Transport>
class round {
 public:
  round(const problem& p, const form& how, std::size_t rank)
      : p_{p}, how_{how}, rank_{rank}, tokens_{p.ranks[rank].tokens}, groups_{p.of.hidden / 128} {
    for (std::size_t t = 0; t < tokens_; ++t) {
      for (std::size_t h = 0; h < p.of.hidden; ++h) {
        x_.push_back(bf16{value_of(rank, t, h)});
        codes_.push_back(fp8_e4m3{});
        codes_.back().bits = code_of(rank, t, h);
      }
      for (std::size_t g = 0; g < groups_; ++g) {
        scales_.push_back(scale_of(rank, t, g));
        narrow_scales_.push_back(narrow_scale_of(rank, t, g));
      }
      narrow_scales_.insert(narrow_scales_.end(), padding, -1);
    }
    if (how.scale == scales::by_columns)
      for (std::size_t t = 0; t < tokens_; ++t)
        for (std::size_t g = 0; g < groups_; ++g) scales_[g * tokens_ + t] = scale_of(rank, t, g);
    for (std::size_t b = 0; b < 2; ++b)
      for (std::size_t t = 0; t < tokens_; ++t)
        for (std::size_t h = 0; h < p.of.hidden; ++h) biases_[b].push_back(bias_of(b, t, h));
  }

  void dispatch(deep_ep::elastic_buffer<Transport>& buffer) {
    const std::size_t local = oracle::deep_ep::local_experts(p_, rank_);
    std::vector<std::int32_t> statistics(local, 5);
    got_ = buffer.dispatch(
        {.x = how_.codes ? deep_ep::const_tensor{deep_ep::view(codes_, {tokens_, p_.of.hidden})}
                         : deep_ep::const_tensor{deep_ep::view(x_, {tokens_, p_.of.hidden})},
         .x_scales = given_scales(),
         .topk_idx = deep_ep::view(p_.ranks[rank_].ids, {tokens_, p_.of.top_k}),
         .topk_weights = how_.weighted ? deep_ep::const_tensor{deep_ep::view(
                                             p_.ranks[rank_].weights, {tokens_, p_.of.top_k})}
                                       : deep_ep::const_tensor{},
         .cumulative_local_expert_recv_stats = deep_ep::view(statistics, {local}),
         .num_experts = p_.of.experts,
         .num_max_tokens_per_rank = how_.bounded ? std::optional{how_.most} : std::nullopt,
         .expert_alignment = how_.alignment,
         .do_zero_padding = how_.zero_padding,
         .do_cpu_sync = how_.knows_counts});
    check_rows(statistics);
    check_metadata();
  }

  /// Dispatches the same rows again by the handle, without weights, and checks them.
  void dispatch_again(deep_ep::elastic_buffer<Transport>& buffer) {
    const std::size_t local = oracle::deep_ep::local_experts(p_, rank_);
    std::vector<std::int32_t> statistics(local, 5);
    const auto* const routing = got_.handle.routing.get();
    const std::size_t rows = got_.handle.num_expanded_tokens;
    got_ =
        buffer.dispatch({.x = deep_ep::view(x_, {tokens_, p_.of.hidden}),
                         .handle = got_.handle,
                         .cumulative_local_expert_recv_stats = deep_ep::view(statistics, {local}),
                         .do_zero_padding = how_.zero_padding});
    test::expect(got_.handle.routing.get() == routing, "the handle is the same");
    test::expect_equal(got_.handle.num_expanded_tokens, rows, "rows of a cached dispatch");
    test::expect(!got_.recv_topk_weights, "no weights came");
    how_.codes = false;
    const bool weighted = std::exchange(how_.weighted, false);
    check_rows(statistics);
    check_metadata();
    how_.weighted = weighted;
  }

  [[nodiscard]] deep_ep::const_tensor given_scales() const {
    if (!how_.codes) return {};
    switch (how_.scale) {
      case scales::by_rows: break;
      case scales::by_columns:
        return {scales_.data(), deep_ep::dtype::float32, {tokens_, groups_}, {1, tokens_}};
      case scales::of_a_byte:
        return {narrow_scales_.data(),
                deep_ep::dtype::int8,
                {tokens_, groups_},
                {groups_ + padding, 1}};
    }
    return deep_ep::view(scales_, {tokens_, groups_});
  }

  void combine(deep_ep::elastic_buffer<Transport>& buffer) {
    check_sums(combined(buffer, how_.weighted));
  }
  /// A combine whose result is not checked.
  deep_ep::elastic_combine_result combined(deep_ep::elastic_buffer<Transport>& buffer,
                                           bool with_weights) {
    const std::size_t hidden = p_.of.hidden;
    const std::size_t all = got_.handle.num_expanded_tokens;
    std::vector<bf16> y(all * hidden, bf16{999.0F});
    for_each([&](std::size_t at, std::size_t expert, const row& from) {
      for (std::size_t h = 0; h < hidden; ++h) y[at * hidden + h] = output_of(expert, from, h);
    });
    deep_ep::elastic_combine_args args{.x = deep_ep::view(y, {all, hidden}), .handle = got_.handle};
    // Those that a dispatch with weights brings.
    std::vector<float> weights(all);
    for_each([&](std::size_t at, std::size_t, const row& from) {
      weights[at] = p_.ranks[from.source].weights[from.token * p_.of.top_k + from.slot];
    });
    if (with_weights) args.topk_weights = deep_ep::view(weights, {all});
    for (std::size_t b = 0; b < how_.biases; ++b)
      args.bias[b] = deep_ep::view(biases_[b], {tokens_, hidden});
    args.async_with_compute_stream = how_.async;
    const auto back = buffer.combine(args);
    back.event.current_stream_wait();
    return back;
  }

 private:
  /// Calls `visit(row, expert, what must lie there)` for this rank's rows.
  template <class Visit>
  void for_each(Visit&& visit) const {
    std::size_t at = 0;
    const std::size_t first = oracle::deep_ep::first_expert(p_, rank_);
    for (std::size_t e = 0; e < oracle::deep_ep::local_experts(p_, rank_); ++e) {
      at = (at + how_.alignment - 1) / how_.alignment * how_.alignment;
      for (const row& from : rows_of(p_, first + e)) visit(at++, first + e, from);
    }
  }

  void check_rows(std::span<const std::int32_t> statistics) const {
    std::vector<bool> filled(got_.handle.num_expanded_tokens);
    for_each([&](std::size_t at, std::size_t, const row& from) {
      filled.at(at) = true;
      for (std::size_t h = 0; h < p_.of.hidden; ++h) {
        if (how_.codes)
          test::expect_equal(int{got_.recv_x.template at<fp8_e4m3>(at, h).bits},
                             int{code_of(from.source, from.token, h)}, "code of row ", at);
        else
          test::expect_equal(got_.recv_x.template at<bf16>(at, h).bits,
                             bf16{value_of(from.source, from.token, h)}.bits, "row ", at,
                             ", channel ", h);
      }
      if (how_.codes)
        for (std::size_t g = 0; g < groups_; ++g) {
          if (how_.scale == scales::of_a_byte)
            test::expect_equal(int{got_.recv_x_scales.template at<std::int8_t>(at, g)},
                               int{narrow_scale_of(from.source, from.token, g)}, "scale of row ",
                               at);
          else
            test::expect_equal(got_.recv_x_scales.template at<float>(at, g),
                               scale_of(from.source, from.token, g), "scale of row ", at);
        }
      if (how_.weighted)
        test::expect_equal(got_.recv_topk_weights.template at<float>(at),
                           p_.ranks[from.source].weights[from.token * p_.of.top_k + from.slot],
                           "weight of row ", at);
    });
    const auto& handle = got_.handle;
    std::size_t end = 0;
    const std::size_t first = oracle::deep_ep::first_expert(p_, rank_);
    for (std::size_t e = 0; e < oracle::deep_ep::local_experts(p_, rank_); ++e) {
      const std::size_t count = rows_of(p_, first + e).size();
      const std::size_t begin = (end + how_.alignment - 1) / how_.alignment * how_.alignment;
      end = begin + count;
      const auto as_int = [](std::size_t value) { return static_cast<std::int32_t>(value); };
      test::expect_equal(handle.psum_num_recv_tokens_per_expert.template at<std::int32_t>(e),
                         as_int(end), "end of local expert ", e);
      test::expect_equal(handle.num_unaligned_recv_tokens_per_expert.template at<std::int32_t>(e),
                         as_int(count), "rows of local expert ", e);
      if (how_.knows_counts)
        test::expect_equal(handle.num_recv_tokens_per_expert_list[e],
                           as_int((count + how_.alignment - 1) / how_.alignment * how_.alignment),
                           "aligned rows of local expert ", e);
      test::expect_equal(statistics[e], as_int(count + 5), "statistics of local expert ", e);
    }
    const std::size_t used = (end + how_.alignment - 1) / how_.alignment * how_.alignment;
    check_size(used);
    if (!how_.zero_padding) return;
    for (std::size_t at = 0; at < used; ++at) {
      if (filled[at]) continue;
      const auto* const bytes = static_cast<const std::uint8_t*>(got_.recv_x.data());
      const std::size_t row_bytes = p_.of.hidden * (how_.codes ? 1 : 2);
      for (std::size_t i = 0; i < row_bytes; ++i)
        test::expect_equal(int{bytes[at * row_bytes + i]}, 0, "gap at row ", at);
      if (how_.weighted)
        test::expect_equal(got_.recv_topk_weights.template at<float>(at), 0.0F, "gap's weight");
    }
  }

  /// Without the counts, there is room for the most rows that could come.
  void check_size(std::size_t used) const {
    const auto& handle = got_.handle;
    const std::size_t local = oracle::deep_ep::local_experts(p_, rank_);
    std::size_t rows = used;
    if (!how_.knows_counts) {
      rows = p_.of.ranks * how_.most * std::min(p_.of.top_k, local);
      rows += (how_.alignment - 1) * local;
      rows = (rows + how_.alignment - 1) / how_.alignment * how_.alignment;
      test::expect(handle.num_recv_tokens_per_expert_list.empty(), "no list of counts");
    }
    test::expect_equal(handle.num_expanded_tokens, rows, "rows and gaps");
    test::expect_equal(got_.recv_x.size(0), rows, "rows of recv_x");
  }

  void check_metadata() const {
    const auto& handle = got_.handle;
    const auto arrived = oracle::deep_ep::arrivals(p_, rank_);
    test::expect_equal(handle.num_max_tokens_per_rank, how_.most, "the most tokens of a rank");
    const std::size_t shown = how_.knows_counts ? arrived.size() : p_.of.ranks * how_.most;
    test::expect_equal(handle.num_recv_tokens, shown, "tokens that came");
    test::expect_equal(handle.recv_src_metadata.size(0), shown, "rows of metadata");
    std::vector<std::vector<std::int32_t>> expected(shown);
    for (auto& entry : expected) entry.assign(p_.of.top_k + 2, -1);
    for (std::size_t i = 0; i < arrived.size(); ++i) {
      expected[i][0] = static_cast<std::int32_t>(arrived[i].rank * how_.most + arrived[i].token);
    }
    for_each([&](std::size_t at, std::size_t, const row& from) {
      for (std::size_t i = 0; i < arrived.size(); ++i) {
        if (arrived[i].rank != from.source || arrived[i].token != from.token) continue;
        expected[i][2 + from.slot] = static_cast<std::int32_t>(at);
        const auto lane = static_cast<std::int32_t>(from.source * p_.of.top_k + from.slot);
        if (expected[i][1] == -1 || lane < expected[i][1]) expected[i][1] = lane;
      }
    });
    for (std::size_t i = 0; i < shown; ++i)
      for (std::size_t c = 0; c < p_.of.top_k + 2; ++c)
        test::expect_equal(handle.recv_src_metadata.template at<std::int32_t>(i, c), expected[i][c],
                           "metadata of token ", i, ", column ", c);
    std::int32_t before = 0;
    for (std::size_t source = 0; source < p_.of.ranks; ++source) {
      before += static_cast<std::int32_t>(oracle::deep_ep::tokens_for(p_, source, rank_));
      test::expect_equal(
          handle.psum_num_recv_tokens_per_scaleup_rank.template at<std::int32_t>(source), before,
          "tokens from ranks 0 to ", source);
    }
  }

  void check_sums(const deep_ep::elastic_combine_result& back) const {
    const auto& mine = p_.ranks[rank_];
    for (std::size_t t = 0; t < tokens_; ++t) {
      for (std::size_t h = 0; h < p_.of.hidden; ++h) {
        float sum = 0;
        for (std::size_t b = 0; b < how_.biases; ++b) sum += static_cast<float>(bias_of(b, t, h));
        for (std::size_t k = 0; k < p_.of.top_k; ++k)
          if (const auto id = mine.ids[t * p_.of.top_k + k]; id >= 0)
            sum += static_cast<float>(output_of(static_cast<std::size_t>(id), {rank_, t, k}, h));
        test::expect_equal(back.combined_x.template at<bf16>(t, h).bits, bf16{sum}.bits,
                           "sum of token ", t, ", channel ", h);
      }
      if (!how_.weighted) continue;
      for (std::size_t k = 0; k < p_.of.top_k; ++k) {
        const bool sent = mine.ids[t * p_.of.top_k + k] >= 0;
        test::expect_equal(back.combined_topk_weights.template at<float>(t, k),
                           sent ? mine.weights[t * p_.of.top_k + k] : 0.0F, "weight of token ", t,
                           ", slot ", k);
      }
    }
  }

 public:
  static constexpr std::size_t most_tokens = form{}.most;

 private:
  static constexpr std::size_t padding = 3;  ///< bytes behind the narrow scales of a token

  const problem& p_;
  form how_;
  std::size_t rank_;
  std::size_t tokens_;
  std::size_t groups_;
  std::vector<bf16> x_;
  std::vector<fp8_e4m3> codes_;
  std::vector<float> scales_;
  std::vector<std::int8_t> narrow_scales_;
  std::array<std::vector<bf16>, 2> biases_;
  deep_ep::elastic_dispatch_result got_{};
};

inline const std::vector<form>& forms() {
  static const std::vector<form> all{{},
                                     {.alignment = 8, .biases = 1},
                                     {.alignment = 16, .zero_padding = true, .biases = 2},
                                     {.weighted = false, .alignment = 5, .async = true},
                                     {.codes = true, .alignment = 4, .zero_padding = true},
                                     {.codes = true, .scale = scales::by_columns},
                                     {.codes = true, .scale = scales::of_a_byte},
                                     {.codes = true, .weighted = false},
                                     {.alignment = 8, .zero_padding = true, .knows_counts = false},
                                     {.codes = true, .alignment = 5, .knows_counts = false}};
  return all;
}

/// Every form on one buffer, in turns, twice.
template <class Group>
void run_forms(std::size_t ranks, const oracle::shape& of, pattern routes, batch sizes) {
  using transport = typename Group::transport;
  CAPTURE(ranks);
  CAPTURE(of.experts);
  const int status = Group::run(ranks, [&](auto& comm) {
    deep_ep::elastic_buffer<transport> buffer{
        comm, {.num_max_tokens_per_rank = round<transport>::most_tokens, .stream_from = 0}};
    for (std::uint64_t seed = 1; seed <= 2; ++seed) {
      const problem p =
          oracle::deep_ep::make_problem(of, routes, sizes, round<transport>::most_tokens, seed);
      for (const form& how : forms()) {
        round<transport> one{p, how, comm.rank().index()};
        one.dispatch(buffer);
        one.combine(buffer);
      }
    }
  });
  CHECK(status == 0);
}

/// Weights that only some ranks give to a combine, after rounds in which all did: refused on all
/// ranks, and the buffer goes on.
template <class Group>
void check_weights_of_some(std::size_t ranks) {
  using transport = typename Group::transport;
  CAPTURE(ranks);
  const int status = Group::run(ranks, [](auto& comm) {
    deep_ep::elastic_buffer<transport> buffer{
        comm, {.num_max_tokens_per_rank = round<transport>::most_tokens}};
    const std::size_t rank = comm.rank().index();
    std::uint64_t seed = 0;
    const auto next_problem = [&] {
      return oracle::deep_ep::make_problem({comm.size(), 8, 128, 3}, pattern::uniform, batch::full,
                                           round<transport>::most_tokens, ++seed);
    };
    const auto whole_round = [&] {
      const problem p = next_problem();
      round<transport> one{p, {}, rank};
      one.dispatch(buffer);
      one.combine(buffer);
    };
    for (const bool async : {false, true})
      for (const bool first_gives : {true, false}) {
        for (std::size_t i = 0; i < deep_ep::elastic_options{}.in_flight; ++i) whole_round();
        const problem p = next_problem();
        round<transport> one{p, {.async = async}, rank};
        one.dispatch(buffer);
        test::expect_error(
            peerbus::errc::mismatch,
            {first_gives ? "combine: topk_weights was given on rank 0 but not on rank 1"
                         : "combine: topk_weights was given on rank 1 but not on rank 0",
             "expected on all ranks or on none"},
            [&] { static_cast<void>(one.combined(buffer, (rank == 0) == first_gives)); });
      }
    whole_round();
  });
  CHECK(status == 0);
}

/// A training step of more layers than dispatches that may be in flight: forward, then backward in
/// the other order, by the handles of the forward pass. Then plans that are combined again without
/// a dispatch between.
template <class Group>
void run_layers(std::size_t ranks, const oracle::shape& of, pattern routes, batch sizes) {
  using transport = typename Group::transport;
  CAPTURE(ranks);
  const int status = Group::run(ranks, [&](auto& comm) {
    deep_ep::elastic_buffer<transport> buffer{
        comm, {.num_max_tokens_per_rank = round<transport>::most_tokens}};
    for (const form& how : std::array<form, 3>{{{.alignment = 4},
                                                {.weighted = false, .zero_padding = true},
                                                {.alignment = 3, .knows_counts = false}}}) {
      std::vector<problem> problems;
      for (std::uint64_t layer = 0; layer < 5; ++layer)
        problems.push_back(oracle::deep_ep::make_problem(of, routes, sizes,
                                                         round<transport>::most_tokens, layer + 1));
      std::vector<round<transport>> layers;
      for (const problem& p : problems) {
        layers.emplace_back(p, how, comm.rank().index());
        layers.back().dispatch(buffer);
        layers.back().combine(buffer);
      }
      for (std::size_t layer = layers.size(); layer-- != 0;) {
        layers[layer].dispatch_again(buffer);  // of the gradients of what combine returned
        layers[layer].combine(buffer);         // of the gradients of what dispatch returned
        layers[layer].combine(buffer);
      }
      for (round<transport>& layer : layers) layer.combine(buffer);
      for (round<transport>& layer : layers) layer.combine(buffer);
    }
  });
  CHECK(status == 0);
}

/// Plans that were made in memory that calls with more tokens of one rank alone have replaced. They
/// keep their B, and later ones have that of the new memory. Rank 0 has no tokens before.
template <class Group>
void run_growth(std::size_t ranks) {
  using transport = typename Group::transport;
  CAPTURE(ranks);
  const int status = Group::run(ranks, [&](auto& comm) {
    const std::size_t rank = comm.rank().index();
    std::uint64_t seed = 0;
    const auto problem_of = [&](std::size_t culprit, std::size_t most) {
      const oracle::shape of{ranks, ranks + 2, 128, 2};
      const pattern routes = ++seed % 2 == 0 ? pattern::holes : pattern::zipf;
      problem p = oracle::deep_ep::make_problem(of, routes, batch::full, most, seed);
      const problem few = oracle::deep_ep::make_problem(of, routes, batch::full, 4, seed);
      const problem none = oracle::deep_ep::make_problem(of, routes, batch::none, 4, seed);
      for (std::size_t r = 0; r < ranks; ++r)
        if (r != culprit) p.ranks[r] = (r == 0 ? none : few).ranks[r];
      return p;
    };
    for (const std::size_t culprit : {std::size_t{0}, ranks - 1})
      for (const std::size_t in_flight : {1U, 2U})
        for (const form& how : std::array<form, 4>{
                 {{.alignment = 4, .biases = 1, .most = 4},
                  {.zero_padding = true, .async = true, .knows_counts = false, .most = 4},
                  {.codes = true, .alignment = 3, .knows_counts = false, .most = 4},
                  {.weighted = false, .knows_counts = false, .most = 5, .bounded = true}}}) {
          deep_ep::elastic_buffer<transport> buffer{
              comm, {.num_max_tokens_per_rank = 4, .in_flight = in_flight}};
          const problem small = problem_of(ranks, 4);
          const problem other = problem_of(ranks, 4);
          const problem big = problem_of(culprit, 21);
          form larger = how;
          larger.most = how.bounded ? 21 : 32;
          round<transport> first{small, how, rank};
          round<transport> second{other, how, rank};
          round<transport> most{big, larger, rank};
          round<transport> after{other, larger, rank};
          first.dispatch(buffer);
          second.dispatch(buffer);
          most.dispatch(buffer);
          second.combine(buffer);
          first.combine(buffer);
          most.combine(buffer);
          first.dispatch_again(buffer);
          first.combine(buffer);
          most.dispatch_again(buffer);  // More than there is memory for in this form.
          second.dispatch_again(buffer);
          for (int times = 0; times < 2; ++times)
            for (auto* one : {&most, &second, &first}) one->combine(buffer);
          after.dispatch(buffer);
          for (auto* one : {&first, &after, &most}) {
            one->dispatch_again(buffer);
            one->combine(buffer);
          }
        }
  });
  CHECK(status == 0);
}

template <class Group>
void run_all() {
  run_forms<Group>(1, {1, 4, 128, 2}, pattern::uniform, batch::full);
  run_forms<Group>(2, {2, 8, 256, 3}, pattern::holes, batch::full);
  run_forms<Group>(3, {3, 7, 128, 4}, pattern::zipf, batch::uneven);
  run_forms<Group>(4, {4, 6, 384, 6}, pattern::one_rank, batch::one_rank);
  run_forms<Group>(5, {5, 32, 128, 32}, pattern::uniform, batch::uneven);
  run_forms<Group>(2, {2, 4, 128, 2}, pattern::nowhere, batch::full);
  run_forms<Group>(3, {3, 4, 128, 2}, pattern::uniform, batch::none);
  check_weights_of_some<Group>(3);
  run_layers<Group>(1, {1, 4, 128, 2}, pattern::uniform, batch::full);
  run_layers<Group>(2, {2, 8, 128, 3}, pattern::holes, batch::one_rank);
  run_layers<Group>(4, {4, 6, 256, 4}, pattern::zipf, batch::uneven);
  for (const std::size_t ranks : {1U, 2U, 4U}) run_growth<Group>(ranks);
}

}  // namespace expanded
