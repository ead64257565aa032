// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/codec/archetype.hpp>
#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/concept.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/layout.hpp>

#include "support/exchange_check.hpp"
#include "support/oracle.hpp"
#include "support/ranks.hpp"
#include "support/repetitions.hpp"

/// Dispatch and combine against the oracle, for any group of ranks (see support/ranks.hpp).
namespace conformance {

enum class counts { full, uneven, one_rank, none };

struct exchange_case {
  std::size_t experts;
  std::size_t hidden;
  std::size_t top_k;
  std::size_t max_tokens;
  oracle::routes routes = oracle::routes::uniform;
  counts tokens = counts::uneven;
  std::array<std::size_t, peerbus::moe::max_attachments> attachments{};
  peerbus::moe::outputs_at outputs = peerbus::moe::outputs_at::expert;
  std::size_t in_flight = 1;
  std::size_t note_bytes = 0;
  std::size_t output_attachment = 0;
  peerbus::moe::dispatch_protocol protocol = peerbus::moe::dispatch_protocol::automatic;
};

inline std::string describe(const exchange_case& one) {
  return "experts " + std::to_string(one.experts) + ", hidden " + std::to_string(one.hidden) +
         ", top_k " + std::to_string(one.top_k) + ", max_tokens " + std::to_string(one.max_tokens) +
         ", routes " + std::to_string(static_cast<int>(one.routes)) + ", counts " +
         std::to_string(static_cast<int>(one.tokens)) + ", attachments " +
         std::to_string(one.attachments[0]) + " ..., outputs " +
         std::to_string(static_cast<int>(one.outputs)) + ", protocol " +
         std::string{peerbus::moe::describe(one.protocol)};
}

inline test::scenario make_scenario(const exchange_case& one, std::size_t ranks,
                                    std::uint64_t seed) {
  test::scenario made{{ranks, one.experts, one.hidden, one.top_k},
                      {},
                      seed % 2 == 1,
                      one.attachments,
                      seed,
                      one.note_bytes,
                      one.output_attachment};
  for (std::size_t r = 0; r < ranks; ++r) {
    std::size_t count = one.max_tokens;
    if (one.tokens == counts::uneven) count = (r * 7 + seed * 3 + 1) % (one.max_tokens + 1);
    if (one.tokens == counts::one_rank && r != seed % ranks) count = 0;
    if (one.tokens == counts::none) count = 0;
    made.inputs.push_back(oracle::make_input(made.shape, r, count, one.routes, seed));
  }
  return made;
}

/// The scenarios of the first `rounds` seeds.
inline std::vector<test::scenario> make_scenarios(const exchange_case& one, std::size_t ranks,
                                                  std::size_t rounds) {
  std::vector<test::scenario> made;
  for (std::size_t seed = 0; seed < rounds; ++seed) made.push_back(make_scenario(one, ranks, seed));
  return made;
}

/// Lets half of the ranks stream their rows, and the other half for another `turn`, so that both
/// kinds of stores meet the oracle in every suite.
inline std::size_t stream_from(peerbus::rank_id rank, std::size_t turn) {
  return (rank.index() + turn) % 2 == 0 ? 0 : peerbus::moe::never_stream;
}

/// Returns the configuration of an exchange for `one`.
inline peerbus::moe::exchange_config config_of(const exchange_case& one) {
  return {.experts = one.experts,
          .hidden = one.hidden,
          .top_k = one.top_k,
          .max_tokens = one.max_tokens,
          .in_flight = one.in_flight,
          .outputs = one.outputs,
          .attachments = one.attachments,
          .output_attachment = one.output_attachment,
          .note_bytes = one.note_bytes,
          .protocol = one.protocol};
}

/// A round of one exchange with each of the scenarios `rounds` of `one`, whose tokens have a size
/// that the codec allows. Returns: a hash of all that came.
template <class Codec, class Layout, class Communicator>
std::uint64_t run_case(Communicator& comm, const exchange_case& one, const Layout& layout,
                       std::span<const test::scenario> rounds) {
  auto config = config_of(one);
  config.stream_from = stream_from(comm.rank(), one.experts);
  peerbus::moe::exchange moe{comm, config, oracle::codec_of<Codec>::make(), layout};
  std::uint64_t hashed = 0;
  for (const test::scenario& round : rounds) {
    try {
      hashed = 31 * hashed + test::check_round(moe, round, comm.rank(), layout);
    } catch (const std::exception& caught) {
      test::fail(Layout::name, ", ", Codec::name, ", ", describe(one), ", round ", round.seed, ": ",
                 caught.what());
    }
  }
  return hashed;
}

/// Gives tokens of `one` the next size that the codec allows.
template <class Codec>
exchange_case fit(exchange_case one) {
  one.hidden = peerbus::align_up(one.hidden, peerbus::hidden_multiple_of<Codec>());
  return one;
}

/// Several rounds of one exchange of a case, as `run_case` of what `make_scenario` makes of it.
template <class Codec, class Layout, class Communicator>
std::uint64_t run_case(Communicator& comm, const exchange_case& one, const Layout& layout,
                       std::size_t rounds) {
  const exchange_case fitting = fit<Codec>(one);
  return run_case<Codec>(comm, fitting, layout, make_scenarios(fitting, comm.size(), rounds));
}

/// The same in a group of its own for all `cases`, with the default layout. What fails names its
/// case.
template <class Group, class Codec>
void check_exchanges(std::span<const exchange_case> cases, std::size_t ranks,
                     std::size_t rounds = test::rounds(3)) {
  CAPTURE(ranks);
  CAPTURE(Codec::name);
  const int worst_status = Group::run(ranks, [&](auto& comm) {
    for (const exchange_case& one : cases)
      run_case<Codec>(comm, one, peerbus::moe::compact{}, rounds);
  });
  CHECK(worst_status == 0);
}

/// One case, as `check_exchanges`.
template <class Group, class Codec>
void check_exchange(const exchange_case& one, std::size_t ranks,
                    std::size_t rounds = test::rounds(3)) {
  check_exchanges<Group, Codec>({&one, 1}, ranks, rounds);
}

/// All shapes and patterns, small.
template <class Group, class Codec>
void check_shapes(std::size_t ranks) {
  using oracle::routes;
  const exchange_case shapes[] = {
      {8, 16, 2, 8},
      {1, 16, 1, 4, routes::uniform, counts::full},
      {3, 48, 1, 8, routes::holes},
      {7, 128, 2, 16, routes::zipf, counts::full},
      {32, 48, 32, 5},
      {19, 16, 8, 12, routes::zipf},
      {40, 128, 8, 16, routes::holes, counts::full},
      {11, 48, 2, 24, routes::one_expert, counts::full},
      {6, 16, 2, 8, routes::nowhere, counts::full},
      {9, 16, 3, 8, routes::uniform, counts::none},
      {9, 16, 3, 8, routes::uniform, counts::one_rank},
  };
  check_exchanges<Group, Codec>(shapes, ranks);
}

/// Rows as long as models have them.
template <class Group, class Codec>
void check_long_rows(std::size_t ranks) {
  using oracle::routes;
  const exchange_case shapes[] = {{13, 2880, 8, 6, routes::zipf, counts::full}, {16, 7168, 8, 4}};
  check_exchanges<Group, Codec>(shapes, ranks, 2);
}

/// Three exchanges of different shapes and codecs alive on one communicator, their operations
/// interleaved: nothing of one may end up in another.
template <class Group>
void check_interleaved(std::size_t ranks) {
  CAPTURE(ranks);
  using peerbus::codec::int8_per_token;
  const int worst_status = Group::run(ranks, [](auto& comm) {
    const exchange_case shapes[] = {{8, 48, 2, 8}, {5, 16, 3, 12, oracle::routes::zipf}};
    peerbus::moe::exchange first{
        comm, {.experts = 8, .hidden = 48, .top_k = 2, .max_tokens = 8}, peerbus::codec::bf16{}};
    peerbus::moe::exchange second{
        comm, {.experts = 5, .hidden = 16, .top_k = 3, .max_tokens = 12}, int8_per_token{}};
    auto twin = std::make_unique<decltype(first)>(comm, first.config());
    for (std::uint64_t round = 0; round < 6; ++round) {
      const auto a = make_scenario(shapes[0], comm.size(), 10 + round);
      const auto b = make_scenario(shapes[1], comm.size(), 20 + round);
      const auto c = make_scenario(shapes[0], comm.size(), 30 + round);
      const auto got_a = test::dispatch(first, a, comm.rank());
      const auto got_b = test::dispatch(second, b, comm.rank());
      const auto got_c = test::dispatch(*twin, c, comm.rank());
      test::check_received(got_b, b, comm.rank());
      test::run_experts(got_b);
      test::check_received(got_a, a, comm.rank());
      test::check_received(got_c, c, comm.rank());
      test::run_experts(got_c);
      test::run_experts(got_a);
      comm.barrier();
      const auto combine = [&](auto& moe, const auto& got, const test::scenario& from, auto codec) {
        const auto& mine = from.inputs[comm.rank().index()];
        std::vector<peerbus::bf16> out(mine.tokens.size());
        moe.combine(got, out);
        test::check_combined(out, oracle::combined<decltype(codec)>(from.shape, mine),
                             from.shape.hidden, 0);
      };
      combine(*twin, got_c, c, peerbus::codec::bf16{});
      combine(first, got_a, a, peerbus::codec::bf16{});
      combine(second, got_b, b, int8_per_token{});
    }
    // One less: what its neighbours hold stays.
    twin.reset();
    test::check_round(first, make_scenario(shapes[0], comm.size(), 99), comm.rank());
  });
  CHECK(worst_status == 0);
}

/// The same input again and again gives the same bytes, whatever was done in between, by streaming
/// and by plain stores.
template <class Group, class Codec, class Layout = peerbus::moe::compact>
void check_repeatable(std::size_t ranks, const Layout& layout = {},
                      peerbus::moe::outputs_at outputs = peerbus::moe::outputs_at::expert) {
  CAPTURE(ranks);
  CAPTURE(Layout::name);
  const int worst_status = Group::run(ranks, [&](auto& comm) {
    const exchange_case one{12, 48, 4, 16, oracle::routes::zipf};
    peerbus::moe::exchange moe{comm,
                               {.experts = 12,
                                .hidden = 48,
                                .top_k = 4,
                                .max_tokens = 16,
                                .outputs = outputs,
                                .stream_from = peerbus::moe::never_stream},
                               oracle::codec_of<Codec>::make(),
                               layout};
    auto streaming_config = moe.config();
    streaming_config.stream_from = 0;
    decltype(moe) streaming{comm, streaming_config, oracle::codec_of<Codec>::make(), layout};
    const auto same = make_scenario(one, comm.size(), 5);
    std::uint64_t first = 0;
    for (std::uint64_t i = 0; i < test::repetitions(20, 4); ++i) {
      auto& judged = i % 2 == 0 ? moe : streaming;
      const std::uint64_t hashed = test::check_round(judged, same, comm.rank(), layout);
      if (i == 0) first = hashed;
      test::expect_equal(hashed, first, "hash of repetition ", i);
      test::check_round(moe, make_scenario(one, comm.size(), 50 + i), comm.rank(), layout);
    }
    // A dispatch whose combine never comes, then one with.
    static_cast<void>(test::dispatch(moe, same, comm.rank()));
    const auto got = test::dispatch(moe, same, comm.rank());
    test::run_experts(got);
    const auto& mine = same.inputs[comm.rank().index()];
    std::vector<peerbus::bf16> out(mine.tokens.size());
    moe.combine(got, out);
    test::check_combined(out, test::expected_of<Codec, Layout>(same.shape, mine), same.shape.hidden,
                         0);
  });
  CHECK(worst_status == 0);
}

/// Checks exchanges by the least codec that there may be, and by one of a user.
template <class Group>
void check_codecs() {
  for (const std::size_t n : {1U, 3U, 4U}) {
    const exchange_case one{7, 48, 3, 9, oracle::routes::zipf};
    check_exchange<Group, peerbus::codec::archetype>(one, n);
    check_exchange<Group, oracle::user_codec>(one, n);
  }
}

}  // namespace conformance

/// Defines the test cases that exchanges of all kinds of groups pass, for these kinds.
#define PEERBUS_TEST_EXCHANGES(...)                                                              \
  TEST_CASE_TEMPLATE("bf16: dispatch and combine, all shapes", Group, __VA_ARGS__) {             \
    for (const std::size_t n : test::sizes_for<Group>())                                         \
      conformance::check_shapes<Group, peerbus::codec::bf16>(n);                                 \
  }                                                                                              \
  TEST_CASE_TEMPLATE("int8_per_token: dispatch and combine, all shapes", Group, __VA_ARGS__) {   \
    for (const std::size_t n : test::sizes_for<Group>())                                         \
      conformance::check_shapes<Group, peerbus::codec::int8_per_token>(n);                       \
  }                                                                                              \
  TEST_CASE_TEMPLATE("rows as long as models have them", Group, __VA_ARGS__) {                   \
    conformance::check_long_rows<Group, peerbus::codec::bf16>(3);                                \
    conformance::check_long_rows<Group, peerbus::codec::int8_per_token>(4);                      \
  }                                                                                              \
  TEST_CASE_TEMPLATE("several exchanges on one communicator, interleaved", Group, __VA_ARGS__) { \
    for (const std::size_t n : {1U, 2U, 5U}) conformance::check_interleaved<Group>(n);           \
  }                                                                                              \
  TEST_CASE_TEMPLATE("the same input gives the same bytes, every time", Group, __VA_ARGS__) {    \
    for (const std::size_t n : {2U, 5U})                                                         \
      conformance::check_repeatable<Group, peerbus::codec::int8_per_token>(n);                   \
    conformance::check_repeatable<Group, peerbus::codec::bf16>(3);                               \
  }
