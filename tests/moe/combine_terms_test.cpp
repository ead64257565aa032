// SPDX-License-Identifier: MIT
// ctest: tsan timeout=300
#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/call_options.hpp>
#include <peerbus/moe/combine_terms.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/layout.hpp>

#include "support/exchange_check.hpp"
#include "support/groups.hpp"
#include "support/oracle.hpp"
#include "support/ranks.hpp"

namespace combine_terms_test {

namespace {

using peerbus::bf16;
using peerbus::errc;
using peerbus::moe::combine_terms;
using peerbus::moe::compact;
using peerbus::moe::exchange;
using peerbus::moe::exchange_config;
using peerbus::moe::outputs_at;
using peerbus::moe::padded;
using peerbus::moe::rank_major;
using codec = peerbus::codec::bf16;
using direct = test::direct_threads;
using staged = test::staged_threads;

constexpr std::size_t hidden = 40;
constexpr std::size_t top_k = 3;
constexpr std::size_t max_tokens = 6;
constexpr exchange_config config{
    .experts = 7, .hidden = hidden, .top_k = top_k, .max_tokens = max_tokens, .in_flight = 2};

/// Which terms a combine is given.
struct chosen {
  bool weights = false;
  std::size_t biases = 0;  ///< how many, from the first
  bool second_only = false;
  bool local = false;
};

float some_value(oracle::random& numbers) {
  return oracle::widen(oracle::round(static_cast<float>(8 * numbers.unit() - 4)));
}

/// What one rank adds, and what must come of it.
struct added {
  combine_terms terms;
  std::vector<bf16> expected;
  std::vector<float> weights;
  std::array<std::vector<bf16>, 2> bias;
  std::deque<std::vector<bf16>> rows;
  std::vector<const bf16*> local;
};

template <class Layout>
constexpr bool by_rank = std::same_as<Layout, rank_major>;

/// The outputs of token `t`'s copies, in order, as `test::run_experts` leaves them.
template <class Layout>
added make_terms(const oracle::shape& of, const oracle::input& mine, const chosen& pick,
                 std::uint64_t seed) {
  oracle::random numbers{seed};
  added made;
  for (std::size_t i = 0; i < mine.count * top_k && pick.weights; ++i)
    made.weights.push_back(some_value(numbers));
  for (std::size_t b = pick.second_only ? 1 : 0; b < pick.biases; ++b)
    for (std::size_t i = 0; i < mine.count * hidden; ++i)
      made.bias[b].push_back(oracle::round(some_value(numbers)));
  for (std::size_t i = 0; i < mine.count * top_k && pick.local; ++i) {
    made.local.push_back(nullptr);
    // Not for all slots that went nowhere.
    if (mine.experts[i] != -1 || numbers.below(3) == 0) continue;
    auto& row = made.rows.emplace_back();
    for (std::size_t h = 0; h < hidden; ++h) row.push_back(oracle::round(some_value(numbers)));
    made.local.back() = row.data();
  }

  const auto owner = oracle::owners(of);
  for (std::size_t t = 0; t < mine.count; ++t)
    for (std::size_t h = 0; h < hidden; ++h) {
      float sum = 0;
      for (const auto& bias : made.bias)
        if (!bias.empty()) sum += oracle::widen(bias[t * hidden + h]);
      const float value = oracle::widen(mine.tokens[t * hidden + h]);
      const auto output = [&](std::size_t slot) {
        return oracle::widen(oracle::apply(static_cast<std::size_t>(mine.experts[slot]), h, value));
      };
      if constexpr (by_rank<Layout>) {
        for (std::size_t r = 0; r < of.ranks; ++r) {
          float part = 0;
          bool there = false;
          for (std::size_t slot = t * top_k; slot < (t + 1) * top_k; ++slot) {
            if (mine.experts[slot] == -1) continue;
            if (owner[static_cast<std::size_t>(mine.experts[slot])] != r) continue;
            part = std::fma(mine.weights[slot], output(slot), part);
            there = true;
          }
          if (there) sum += oracle::widen(oracle::round(part));
        }
      } else {
        for (std::size_t slot = t * top_k; slot < (t + 1) * top_k; ++slot) {
          const float weight = pick.weights ? made.weights[slot] : mine.weights[slot];
          if (mine.experts[slot] != -1)
            sum = std::fma(weight, output(slot), sum);
          else if (pick.local && made.local[slot] != nullptr)
            sum = std::fma(weight, oracle::widen(made.local[slot][h]), sum);
        }
      }
      made.expected.push_back(oracle::round(sum));
    }
  made.terms.weights = made.weights;
  for (std::size_t b = 0; b < made.bias.size(); ++b) made.terms.bias[b] = made.bias[b];
  made.terms.local = made.local;
  return made;
}

/// Finite tokens, ids with holes.
oracle::input input_of(const oracle::shape& of, std::size_t rank, std::size_t count,
                       std::uint64_t seed) {
  auto made = oracle::make_input(of, rank, count, oracle::routes::holes, seed);
  oracle::random numbers{seed + rank};
  for (bf16& value : made.tokens) value = oracle::round(some_value(numbers));
  return made;
}

template <class Moe>
auto dispatched(Moe& moe, const oracle::input& mine) {
  const auto got = moe.dispatch(mine.tokens, {mine.experts, mine.weights});
  test::run_experts(got);
  return got;
}

/// Moves the outputs for tokens of rank `own` out of the window to `kept`, and spoils their places.
/// Returns `combine_terms::own` for them.
template <class Layout, class Received>
std::vector<const bf16*> move_out(const Received& got, peerbus::rank_id own, std::size_t tokens,
                                  std::size_t copies, std::deque<std::vector<bf16>>& kept) {
  std::vector<const bf16*> outputs(tokens * copies, nullptr);
  const auto move = [&](const auto& rows) {
    for (std::size_t i = 0; i < rows.count(); ++i) {
      const auto origin = rows.origin(i);
      if (origin.rank != own) continue;
      const auto output = rows.output(i);
      outputs[origin.token * copies + origin.slot] =
          kept.emplace_back(output.begin(), output.end()).data();
      std::ranges::fill(output, bf16::from_bits(0x7fc0));
    }
  };
  if constexpr (by_rank<Layout>)
    move(got);
  else
    for (const auto& rows : got.experts()) move(rows);
  return outputs;
}

template <class Group, class Layout>
void check_terms(std::size_t ranks, outputs_at outputs) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [outputs](auto& comm) {
    exchange_config with_outputs = config;
    with_outputs.outputs = outputs;
    exchange moe{comm, with_outputs, codec{}, Layout{}};
    const std::size_t rank = comm.rank().index();
    const oracle::shape of{comm.size(), config.experts, hidden, top_k};
    std::uint64_t seed = 1;
    for (const chosen& pick : {
             chosen{},
             {.biases = 1},
             {.biases = 2},
             {.biases = 2, .second_only = true},
             {.weights = true},
             {.weights = true, .local = true},
             {.weights = true, .biases = 2, .local = true},
         }) {
      if (by_rank<Layout> && pick.weights) continue;
      for (const std::size_t count : {max_tokens, rank % 2 == 0 ? 0 : max_tokens - 1}) {
        const auto mine = input_of(of, rank, count, ++seed);
        auto terms = make_terms<Layout>(of, mine, pick, seed * 64 + rank);
        const auto got = dispatched(moe, mine);
        // Each rank decides for itself whether its own outputs lie elsewhere.
        std::deque<std::vector<bf16>> kept;
        std::vector<const bf16*> own;
        if ((seed + rank) % 3 == 0) {
          own = move_out<Layout>(got, comm.rank(), count, moe.map().copies, kept);
          terms.terms.own = own;
        }
        std::vector<bf16> out(count * hidden, bf16::from_bits(0xdead));
        if (seed % 2 == 0) {
          moe.combine(got, out, {.terms = terms.terms});
        } else {
          moe.combine_send(got);
          moe.combine_recv(got, out, {.terms = terms.terms});
        }
        static_cast<void>(test::check_combined(out, terms.expected, hidden, 0));
      }
    }
  });
  CHECK(worst_status == 0);
}

template <class Group>
void check_all_layouts() {
  for (const std::size_t ranks : {1U, 2U, 3U, 5U})
    for (const outputs_at outputs : {outputs_at::expert, outputs_at::home}) {
      check_terms<Group, compact>(ranks, outputs);
      check_terms<Group, padded>(ranks, outputs);
      check_terms<Group, rank_major>(ranks, outputs);
    }
}

/// Each is refused on the rank that gave it and, by the whole form, on all others; then the batch
/// is combined as it should be.
template <class Group, class Layout>
void check_refusals() {
  const int worst_status = Group::run(3, [](auto& comm) {
    exchange moe{comm, config, codec{}, Layout{}};
    const std::size_t rank = comm.rank().index();
    const oracle::shape of{comm.size(), config.experts, hidden, top_k};
    const oracle::input mine{2,
                             std::vector<bf16>(2 * hidden, oracle::round(1.5F)),
                             {0, -1, 3, 6, 2, -1},
                             std::vector<float>(6, 0.5F)};
    const std::vector<float> weights(7, 2.0F);
    const std::vector<bf16> values(3 * hidden, oracle::round(1));
    const std::vector<const bf16*> nowhere(7, nullptr);
    std::vector<const bf16*> of_sent(6, nullptr);
    of_sent[4] = values.data();

    struct bad {
      combine_terms terms;
      std::string_view says;
    };
    const std::span w{weights};
    const std::span v{values};
    std::vector<bad> all{{{.bias = {v.first(2 * hidden - 1), {}}},
                          "bias 0 of 79 values, expected none or tokens x hidden, 80"},
                         {{.bias = {v.first(2 * hidden), v}},
                          "bias 1 of 120 values, expected none or tokens x hidden, 80"}};
    if (by_rank<Layout>) {
      constexpr std::string_view unweighted =
          "weights or local rows, expected none, as rank-major rows are summed unweighted";
      all.push_back({{.weights = w.first(6)}, unweighted});
      all.push_back({{.local = std::span{nowhere}.first(6)}, unweighted});
      all.push_back({{.weights = w.first(6), .local = std::span{nowhere}.first(6)}, unweighted});
    } else {
      all.push_back({{.weights = w.first(5)}, "5 weights, expected none or tokens x top_k, 6"});
      all.push_back({{.weights = w}, "7 weights, expected none or tokens x top_k, 6"});
      all.push_back(
          {{.local = std::span{nowhere}.first(6)}, "local rows but no weights, expected both"});
      all.push_back({{.weights = w.first(6), .local = nowhere},
                     "7 local rows, expected none or tokens x top_k, 6"});
      all.push_back({{.weights = w.first(6), .local = of_sent},
                     "a local row for token 1, slot 1, which went to an expert"});
    }
    all.push_back(
        {{.own = nowhere}, "7 own outputs, expected none or, without relay, tokens x copies, 6"});
    // The turn of rank 2 in layouts by expert, and of rank 0 by rank; the copy is at the other one.
    all.push_back({{.own = of_sent},
                   "an own output for token 1, copy 1, which this rank's experts did not get"});
    std::size_t turn = 0;
    for (const bad& one : all) {
      const std::size_t culprit = turn++ % comm.size();
      const auto got = dispatched(moe, mine);
      std::vector<bf16> out(2 * hidden);
      const peerbus::moe::combine_terms terms =
          rank == culprit ? one.terms : peerbus::moe::combine_terms{};
      test::expect_error(rank == culprit ? errc::invalid_argument : errc::refused, {one.says},
                         [&] { moe.combine(got, out, {.terms = terms}); });
      // By halves, on that rank alone.
      moe.combine_send(got);
      if (rank == culprit)
        test::expect_error(errc::invalid_argument, {one.says},
                           [&] { moe.combine_recv(got, out, {.terms = terms}); });
      moe.combine_recv(got, out);
      const auto plain = make_terms<Layout>(of, mine, {}, 1);
      static_cast<void>(test::check_combined(out, plain.expected, hidden, 0));
    }
  });
  CHECK(worst_status == 0);
}

}  // namespace

TEST_CASE("combine adds biases, other weights and rows of the home rank: direct") {
  check_all_layouts<direct>();
}

TEST_CASE("combine adds biases, other weights and rows of the home rank: staged") {
  check_all_layouts<staged>();
}

TEST_CASE("terms that do not fit are refused: direct") {
  check_refusals<direct, compact>();
  check_refusals<direct, padded>();
  check_refusals<direct, rank_major>();
}

TEST_CASE("terms that do not fit are refused: staged") {
  check_refusals<staged, padded>();
  check_refusals<staged, rank_major>();
}

}  // namespace combine_terms_test
