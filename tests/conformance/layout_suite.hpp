// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

#include <doctest/doctest.h>

#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/transport/any_transport.hpp>

#include "conformance/exchange_suite.hpp"
#include "support/oracle.hpp"
#include "support/ranks.hpp"
#include "support/sanitized.hpp"

/// All layouts, with outputs at either end and attachments, for any group of ranks.
namespace conformance {

/// The codecs with which layouts with slots are tested: one of the library's and one whose rows
/// have another size than tokens. Slots change where rows lie, and every codec is told that alike.
template <class Codec>
constexpr bool with_slots =
    std::same_as<Codec, peerbus::codec::int8_per_token> || std::same_as<Codec, oracle::user_codec>;

/// The codec and the transport with which automatic layouts are tested: one of the library's, and
/// the one that has each way of rows. Either protocol is tested with the others by its own
/// layouts.
template <class Codec, class Communicator>
constexpr bool with_automatic =
    std::same_as<Codec, peerbus::codec::int8_per_token> &&
    std::same_as<Communicator, peerbus::communicator<peerbus::any_transport>>;

/// One case in every layout. Rows and results may not depend on where rows lie, nor on where
/// outputs do.
template <class Codec, class Communicator>
void run_layouts(Communicator& comm, exchange_case one, std::size_t rounds) {
  using peerbus::moe::compact;
  using peerbus::moe::dispatch_protocol;
  using peerbus::moe::outputs_at;
  using peerbus::moe::padded;
  using peerbus::moe::rank_major;
  one = fit<Codec>(one);
  auto scenarios = make_scenarios(one, comm.size(), rounds);  // They take longer than a round.
  const auto run = [&](const auto& layout) {
    return run_case<Codec>(comm, one, layout, scenarios);
  };
  const std::uint64_t by_expert = run(compact{});
  const auto expect_same = [&](const auto& layout, std::uint64_t expected) {
    test::expect_equal(run(layout), expected, "hash of ", layout.name, ", ", describe(one));
  };
  expect_same(compact{.alignment = 4, .zero_gaps = true}, by_expert);
  expect_same(compact{.alignment = 7}, by_expert);
  expect_same(compact{.alignment = 128, .zero_gaps = true}, by_expert);
  expect_same(padded{}, by_expert);
  const std::uint64_t by_rank = run(rank_major{});
  const auto expect_same_slots = [&] {
    if constexpr (with_slots<Codec>) {
      expect_same(peerbus::moe::expert_slots{}, by_expert);
      expect_same(peerbus::moe::slots{}, by_rank);
    }
  };
  const auto expect_same_automatic = [&] {
    if constexpr (with_automatic<Codec, Communicator>) {
      for (const auto forced : {dispatch_protocol::counts_first, dispatch_protocol::one_phase}) {
        one.protocol = forced;
        expect_same(peerbus::moe::automatic{}, by_expert);
        expect_same(peerbus::moe::automatic_by_rank{}, by_rank);
      }
      one.protocol = dispatch_protocol::automatic;
    }
  };
  expect_same_slots();
  expect_same_automatic();
  one.outputs = outputs_at::home;
  one.in_flight = 3;
  one.note_bytes += 4;
  for (test::scenario& from : scenarios) from.note_bytes = one.note_bytes;
  expect_same(compact{.alignment = 4}, by_expert);
  expect_same(padded{}, by_expert);
  expect_same(rank_major{}, by_rank);
  expect_same_slots();
  expect_same_automatic();
}

/// All shapes and patterns, small. AddressSanitizer sees as much in one round as in two.
template <class Group, class Codec>
void check_layouts(std::size_t ranks, std::size_t rounds = test::has_address_sanitizer ? 1 : 2) {
  CAPTURE(ranks);
  CAPTURE(Codec::name);
  using oracle::routes;
  const int worst_status = Group::run(ranks, [rounds](auto& comm) {
    for (const exchange_case& one : {
             exchange_case{8, 16, 2, 8},
             {1, 16, 1, 4, routes::uniform, counts::full, {4}},
             {.experts = 3,
              .hidden = 48,
              .top_k = 1,
              .max_tokens = 8,
              .routes = routes::holes,
              .attachments = {1000, 4},
              .note_bytes = 13,
              .output_attachment = 4},
             {.experts = 7,
              .hidden = 128,
              .top_k = 2,
              .max_tokens = 16,
              .routes = routes::zipf,
              .tokens = counts::full,
              .attachments = {12, 4, 1000, 64},
              .output_attachment = 12},
             {.experts = 32,
              .hidden = 48,
              .top_k = 32,
              .max_tokens = 5,
              .attachments = {0, 8, 0, 20},
              .output_attachment = 512},
             {19, 16, 8, 12, routes::zipf, counts::one_rank, {16, 16, 16}},
             {11, 48, 2, 24, routes::one_expert, counts::full},
             {6, 16, 2, 8, routes::nowhere, counts::full, {8}},
             {9, 16, 3, 8, routes::uniform, counts::none, {8}},
         })
      run_layouts<Codec>(comm, one, rounds);
  });
  CHECK(worst_status == 0);
}

/// More rows from one rank to one expert than one byte counts, then more than two bytes count.
template <class Group, class Codec>
void check_many_rows() {
  using oracle::routes;
  const int worst_status = Group::run(2, [](auto& comm) {
    run_layouts<Codec>(comm, {3, 16, 2, 300, routes::one_expert, counts::full, {4}}, 1);
    const exchange_case most{2, 16, 1, 70'000, routes::one_expert, counts::full};
    run_case<Codec>(comm, most, peerbus::moe::padded{}, 1);
    run_case<Codec>(comm, most, peerbus::moe::rank_major{}, 1);
    if constexpr (with_slots<Codec>) {
      run_case<Codec>(comm, most, peerbus::moe::slots{}, 1);
      run_case<Codec>(comm, most, peerbus::moe::expert_slots{}, 1);
    }
  });
  CHECK(worst_status == 0);
}

/// Many operations in a row, so that what one leaves behind meets the next.
template <class Group, class Codec>
void check_layouts_repeatable(std::size_t ranks) {
  using peerbus::moe::compact;
  using peerbus::moe::outputs_at;
  const compact aligned{.alignment = 4, .zero_gaps = true};
  check_repeatable<Group, Codec>(ranks, aligned, outputs_at::home);
  for (const outputs_at outputs : {outputs_at::expert, outputs_at::home}) {
    check_repeatable<Group, Codec>(ranks, peerbus::moe::padded{}, outputs);
    check_repeatable<Group, Codec>(ranks, peerbus::moe::rank_major{}, outputs);
    if constexpr (with_slots<Codec>) {
      check_repeatable<Group, Codec>(ranks, peerbus::moe::slots{}, outputs);
      check_repeatable<Group, Codec>(ranks, peerbus::moe::expert_slots{}, outputs);
    }
  }
}

}  // namespace conformance
