// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/check_config.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/kept_rows.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/routing.hpp>

#include "support/exchange_check.hpp"
#include "support/oracle.hpp"
#include "support/ranks.hpp"

/// Bad input to an exchange, for any group of ranks.
namespace refusals {

using peerbus::bf16;
using peerbus::errc;
using peerbus::rank_id;
using peerbus::moe::exchange_config;
using peerbus::moe::routing;

inline constexpr exchange_config config{.experts = 6, .hidden = 16, .top_k = 2, .max_tokens = 4};

/// Good input of 3 tokens, which a bad one spoils.
struct arguments {
  std::vector<bf16> tokens = std::vector<bf16>(3 * config.hidden, bf16{1.0F});
  std::vector<std::int64_t> experts{0, 1, 2, -1, 4, 5};
  std::vector<float> weights = std::vector<float>(6, 0.5F);
  bool null_tokens = false;
  bool null_experts = false;
  bool null_weights = false;

  [[nodiscard]] std::span<const bf16> token_span() const {
    return {null_tokens ? nullptr : tokens.data(), tokens.size()};
  }
  [[nodiscard]] routing route() const {
    return {std::span{null_experts ? nullptr : experts.data(), experts.size()},
            std::span{null_weights ? nullptr : weights.data(), weights.size()}};
  }
};

struct bad_input {
  std::string_view name;
  void (*spoil)(arguments&);
  std::string_view says;
};

inline constexpr bad_input bad_inputs[] = {
    {"null tokens", [](arguments& a) { a.null_tokens = true; },
     "tokens that are null but 48 values long"},
    {"null experts", [](arguments& a) { a.null_experts = true; },
     "a routing whose experts are null but 6 long"},
    {"null weights", [](arguments& a) { a.null_weights = true; },
     "a routing whose weights are null but 6 long"},
    {"part of a token", [](arguments& a) { a.tokens.pop_back(); },
     "tokens with 47 values, expected a multiple of hidden, 16"},
    {"too many tokens",
     [](arguments& a) {
       a.tokens.resize(5 * config.hidden);
       a.experts.assign(10, -1);
       a.weights.resize(10);
     },
     "5 tokens, expected at most max_tokens, 4"},
    {"too few expert ids", [](arguments& a) { a.experts.pop_back(); },
     "a routing with 5 expert ids, expected tokens x top_k, 6"},
    {"too many expert ids", [](arguments& a) { a.experts.push_back(3); },
     "a routing with 7 expert ids, expected tokens x top_k, 6"},
    {"no expert ids", [](arguments& a) { a.experts.clear(); },
     "a routing with 0 expert ids, expected tokens x top_k, 6"},
    {"too few weights", [](arguments& a) { a.weights.resize(2); },
     "a routing with 2 weights, expected tokens x top_k, 6"},
    {"ids but no tokens", [](arguments& a) { a.tokens.clear(); },
     "a routing with 6 expert ids, expected tokens x top_k, 0"},
    {"expert past the last", [](arguments& a) { a.experts[3] = 6; },
     "expert id 6 at token 1, slot 1, expected -1 or 0 to 5"},
    {"expert -2", [](arguments& a) { a.experts[4] = -2; },
     "expert id -2 at token 2, slot 0, expected -1 or 0 to 5"},
    {"expert far beyond 32 bits", [](arguments& a) { a.experts[0] = std::int64_t{1} << 40; },
     "expert id 1099511627776 at token 0, slot 0, expected -1 or 0 to 5"},
    {"least expert", [](arguments& a) { a.experts[0] = std::numeric_limits<std::int64_t>::min(); },
     "expert id -9223372036854775808 at token 0, slot 0"},
    {"expert twice", [](arguments& a) { a.experts[5] = 4; },
     "expert id 4 again at token 2, slot 1, expected different experts within a token"},
};

/// Everything in this rank's part that a peer or an operation could write but the messages, in
/// which refusals travel.
template <class Exchange>
std::vector<std::byte> rows_area(Exchange& moe) {
  const auto part = moe.memory().local().subspan(moe.map().rows);
  return {part.begin(), part.end()};
}

inline std::string rank_text(std::size_t rank) { return "rank " + std::to_string(rank); }

/// One checked round, to show that the exchange works.
template <class Transport, class Codec, class Layout>
void check_works(peerbus::moe::exchange<Transport, Codec, Layout>& moe, std::size_t ranks,
                 rank_id rank, std::uint64_t seed) {
  test::scenario from{{ranks, config.experts, config.hidden, config.top_k},
                      {},
                      false,
                      moe.config().attachments,
                      seed};
  for (std::size_t r = 0; r < ranks; ++r)
    from.inputs.push_back(
        oracle::make_input(from.shape, r, (r + seed) % 5, oracle::routes::holes, seed));
  test::check_round(moe, from, rank);
}

template <class Group, class Layout = peerbus::moe::compact>
void check_bad_dispatch(std::size_t ranks) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [](auto& comm) {
    peerbus::moe::exchange moe{comm, config, peerbus::codec::int8_per_token{}, Layout{}};
    const std::size_t me = comm.rank().index();
    std::uint64_t seed = 0;
    check_works(moe, comm.size(), comm.rank(), seed);
    for (const bad_input& bad : bad_inputs) {
      const std::size_t who = seed % comm.size();
      const auto before = rows_area(moe);
      comm.barrier();
      arguments mine;
      if (me == who) bad.spoil(mine);
      // Twice in a row, as refusals use two generations of messages.
      for (int i = 0; i < 2; ++i) {
        try {
          if (me == who)
            test::expect_error(errc::invalid_argument, {"dispatch", bad.says},
                               [&] { (void)moe.dispatch(mine.token_span(), mine.route()); });
          else
            test::expect_error(errc::refused,
                               {"dispatch", "did not happen", rank_text(who), bad.says},
                               [&] { (void)moe.dispatch(mine.token_span(), mine.route()); });
        } catch (const std::exception& caught) {
          test::fail(bad.name, ": ", caught.what());
        }
      }
      comm.barrier();
      // Rows in slots have left before the refusal is known. They are not read.
      test::expect(peerbus::moe::slot_layout<Layout> || rows_area(moe) == before, bad.name,
                   ": nothing to be written");
      if (++seed % 3 == 0) check_works(moe, comm.size(), comm.rank(), seed);
    }
    check_works(moe, comm.size(), comm.rank(), 1234);
  });
  CHECK(worst_status == 0);
}

/// Each rank reports its own mistake, the good ones the lowest bad rank.
template <class Group>
void check_bad_on_several(std::size_t ranks) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [](auto& comm) {
    peerbus::moe::exchange moe{comm, config, peerbus::codec::bf16{}};
    arguments mine;
    const std::size_t me = comm.rank().index();
    const auto call = [&] { (void)moe.dispatch(mine.token_span(), mine.route()); };
    if (me > 0) {
      mine.experts[0] = static_cast<std::int64_t>(100 + me);
      test::expect_error(errc::invalid_argument, {"expert id " + std::to_string(100 + me)}, call);
    } else {
      test::expect_error(errc::refused, {"rank 1", "expert id 101"}, call);
    }
    check_works(moe, comm.size(), comm.rank(), 3);
  });
  CHECK(worst_status == 0);
}

template <class Group, class Layout = peerbus::moe::compact>
void check_bad_combine(std::size_t ranks,
                       peerbus::moe::outputs_at outputs = peerbus::moe::outputs_at::expert) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [outputs](auto& comm) {
    exchange_config moved = config;
    moved.outputs = outputs;
    peerbus::moe::exchange moe{comm, moved, peerbus::codec::bf16{}, Layout{}};
    const std::size_t me = comm.rank().index();
    const std::size_t last = comm.size() - 1;
    const arguments mine;
    std::vector<bf16> out(mine.tokens.size());
    const auto expect_refused = [&](std::size_t who, std::string_view says, auto&& call) {
      std::fill(out.begin(), out.end(), bf16::from_bits(0x1234));
      for (int i = 0; i < 2; ++i) {
        if (me == who)
          test::expect_error(errc::invalid_argument, {"combine", says}, call);
        else
          test::expect_error(errc::refused, {"combine", "did not happen", rank_text(who), says},
                             call);
      }
      for (const bf16 value : out) test::expect_equal(value.bits, 0x1234U, "a value of out");
    };

    // What a rank does wrong with a batch is no call: it throws there alone, and the right call
    // still meets the others'.
    const auto expect_misuse = [&](std::string_view says, auto&& call) {
      test::expect_error(errc::invalid_argument, {"combine", says}, call);
    };
    peerbus::moe::exchange other{comm, moved, peerbus::codec::bf16{}, Layout{}};
    const auto foreign = other.dispatch(mine.token_span(), mine.route());
    expect_misuse("the rows of another exchange", [&] { moe.combine(foreign, out); });
    const auto first = moe.dispatch(mine.token_span(), mine.route());
    // The ticket alone would fit.
    if (me == last)
      expect_misuse("the rows of another exchange", [&] { moe.combine(foreign, out); });
    const auto got = moe.dispatch(mine.token_span(), mine.route());
    test::run_experts(got);
    if (me == last)
      expect_misuse(
          "the rows of dispatch 1, which dispatch 2 has replaced; expected those of the latest 1",
          [&] { moe.combine(first, out); });
    expect_refused(0, "out with 47 values, expected tokens x hidden, 48",
                   [&] { moe.combine(got, me == 0 ? std::span{out}.first(47) : std::span{out}); });
    expect_refused(last, "out that is null but 48 values long", [&] {
      moe.combine(got,
                  me == last ? std::span<bf16>{static_cast<bf16*>(nullptr), 48} : std::span{out});
    });
    // After a refused dispatch the outputs of the one before still combine.
    arguments bad = mine;
    if (me == last) bad.experts[0] = 99;
    test::expect_error(me == last ? errc::invalid_argument : errc::refused, {"expert id 99"},
                       [&] { (void)moe.dispatch(bad.token_span(), bad.route()); });
    moe.combine(got, out);
    const oracle::shape shape{comm.size(), config.experts, config.hidden, config.top_k};
    const oracle::input input{3, mine.tokens, mine.experts, mine.weights};
    test::check_combined(out, test::expected_of<peerbus::codec::bf16, Layout>(shape, input),
                         config.hidden, 0);
    expect_misuse(
        "the rows of dispatch 2, which is combined already, expected one that is received",
        [&] { moe.combine(got, out); });
    test::expect_error(errc::invalid_argument, {"reopen was given the rows of another exchange"},
                       [&] { other.reopen(got); });
    for (int again = 0; again < 3; ++again) {
      moe.reopen(got);
      test::expect_error(
          errc::invalid_argument,
          {"the rows of dispatch 2, which is received, expected one that is combined"},
          [&] { moe.reopen(got); });
      test::run_experts(got);
      std::fill(out.begin(), out.end(), bf16::from_bits(0x1234));
      moe.combine(got, out);
      test::check_combined(out, test::expected_of<peerbus::codec::bf16, Layout>(shape, input),
                           config.hidden, 0);
    }
    moe.reopen(got);  // And not combined.
    check_works(moe, comm.size(), comm.rank(), 77);
  });
  CHECK(worst_status == 0);
}

/// While a rank keeps the rows of a batch, all ranks refuse what would overwrite them: the dispatch
/// that needs their memory and, in layouts with slots, the combine that gives them up.
template <class Group, class Layout>
void check_kept_rows(std::size_t ranks) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [](auto& comm) {
    peerbus::moe::exchange moe{comm, config, peerbus::codec::bf16{}, Layout{}};
    const arguments mine;
    std::vector<bf16> out(mine.tokens.size());
    const std::size_t last = comm.size() - 1;
    const bool keeps = comm.rank().index() == last;
    const auto refused = [&](std::string_view operation, auto&& call) {
      for (int i = 0; i < 2; ++i)
        test::expect_error(keeps ? errc::invalid_argument : errc::refused,
                           {operation, keeps ? std::string{"was given"} : rank_text(last),
                            "memory with the rows of dispatch 1, which exchange::keep still keeps"},
                           call);
    };
    const auto dispatch = [&] { return moe.dispatch(mine.token_span(), mine.route()); };
    const auto rows = dispatch();
    std::optional<peerbus::moe::kept_rows> kept;
    if (keeps) kept = moe.keep(rows);
    const auto before = rows_area(moe);
    refused("dispatch", dispatch);
    comm.barrier();
    test::expect(rows_area(moe) == before, "nothing to be written");
    comm.barrier();
    test::run_experts(rows);
    const auto combine = [&] { moe.combine(rows, out); };
    if (peerbus::moe::slot_layout<Layout>) {
      refused("combine", combine);
      kept.reset();
      combine();
      test::expect_error(errc::invalid_argument, {"keep", "dispatch 1, which is combined already"},
                         [&] { static_cast<void>(moe.keep(rows)); });
    } else {
      combine();
      refused("dispatch", dispatch);
      std::optional other{std::move(kept)};
      kept.reset();
      refused("dispatch", dispatch);
      other.reset();
    }
    const oracle::shape shape{comm.size(), config.experts, config.hidden, config.top_k};
    const oracle::input input{3, mine.tokens, mine.experts, mine.weights};
    test::check_combined(out, test::expected_of<peerbus::codec::bf16, Layout>(shape, input),
                         config.hidden, 0);
    check_works(moe, comm.size(), comm.rank(), 9);
    test::expect_error(errc::invalid_argument, {"keep was given ticket 1"},
                       [&] { static_cast<void>(moe.keep(rows)); });
  });
  CHECK(worst_status == 0);
}

template <class Group>
void check_bad_configurations(std::size_t ranks) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [](auto& comm) {
    struct wrong {
      exchange_config config;
      std::string_view says;
    };
    const std::size_t huge = std::size_t{1} << 32;
    for (const wrong& one : {
             wrong{{.experts = 0, .hidden = 16, .top_k = 1, .max_tokens = 1},
                   "experts is 0, expected at least 1"},
             {{.experts = 4, .hidden = 16, .top_k = 0, .max_tokens = 1},
              "top_k is 0, expected 1 to 32"},
             {{.experts = 64, .hidden = 16, .top_k = 33, .max_tokens = 1},
              "top_k is 33, expected 1 to 32"},
             {{.experts = 4, .hidden = 16, .top_k = 5, .max_tokens = 1},
              "top_k is 5, expected at most experts, 4"},
             {{.experts = 4, .hidden = 16, .top_k = 2, .max_tokens = 0},
              "max_tokens is 0, expected at least 1"},
             {{.experts = 4, .hidden = 0, .top_k = 2, .max_tokens = 1}, "hidden is 0"},
             {{.experts = 4, .hidden = 24, .top_k = 2, .max_tokens = 1},
              "hidden is 24, which makes a row of 24 bytes with codec int8_per_token, expected a "
              "multiple of 16 bytes"},
             {{.experts = 4, .hidden = 16, .top_k = 4, .max_tokens = huge / 4},
              "ranks x max_tokens x top_k is"},
             {{.experts = 4, .hidden = 16, .top_k = 1, .max_tokens = ~std::size_t{0}},
              "expected less than 2^32"},
             {{.experts = huge, .hidden = 16, .top_k = 1, .max_tokens = 1}, ""},
             {{.experts = 4, .hidden = 16, .top_k = 1, .max_tokens = 1, .in_flight = 0},
              "in_flight is 0, expected 1 to 16"},
             {{.experts = 4, .hidden = 16, .top_k = 1, .max_tokens = 1, .in_flight = 17},
              "in_flight is 17"},
             {{.experts = 4, .hidden = 16, .top_k = 1, .max_tokens = 1, .output_attachment = 6},
              "output_attachment is 6 bytes per output, expected a multiple of 4"},
             {{.experts = 4, .hidden = 192, .top_k = 1, .max_tokens = 1, .logfmt_outputs = true},
              "logfmt_outputs is true and hidden is 192, expected a multiple of 128"},
             {{.experts = 4, .hidden = 256, .top_k = 1, .max_tokens = 1, .logfmt_outputs = true},
              "logfmt_outputs is true and output_attachment is 0, expected the bytes of heads, 8"},
             {{.experts = 4, .hidden = 16, .top_k = 1, .max_tokens = 1, .note_bytes = huge},
              "note_bytes is 4294967296, expected at most 16777216"},
             {{.experts = 4, .hidden = 16, .top_k = 1, .max_tokens = 1, .attachments = {4, 6}},
              "attachment 1 has 6 bytes per token, expected a multiple of 4"},
             {{.experts = 4,
               .hidden = 16,
               .top_k = 1,
               .max_tokens = 1,
               .outputs = static_cast<peerbus::moe::outputs_at>(7)},
              "outputs is 7"},
             {{.experts = 4, .hidden = huge, .top_k = 1, .max_tokens = 1}, "hidden is 4294967296"},
         }) {
      // Without ranks, by the same text; on all ranks; then on the last one only.
      const auto told = peerbus::moe::objection_to<peerbus::codec::int8_per_token>(
          one.config, comm.size(), peerbus::moe::compact{});
      test::expect(told && told->text().find(one.says) != std::string_view::npos,
                   "objection_to said ", told ? told->text() : "nothing");
      for (const bool all : {true, false}) {
        const bool bad = all || comm.rank().index() == comm.size() - 1;
        test::expect_error(errc::invalid_argument, {"exchange", one.says}, [&] {
          peerbus::moe::exchange moe{comm, bad ? one.config : config,
                                     peerbus::codec::int8_per_token{}};
        });
      }
    }
    // More than there is, but not by its numbers.
    test::expect_error(errc::out_of_memory, {"too large", "need ", "have ", "MiB"}, [&] {
      peerbus::moe::exchange moe{
          comm,
          {.experts = 8, .hidden = 1U << 20, .top_k = 8, .max_tokens = 1U << 22},
          peerbus::codec::bf16{}};
    });
    test::expect(!peerbus::moe::objection_to<peerbus::codec::bf16>(config, comm.size()),
                 "objection_to refused what works");
    peerbus::moe::exchange moe{comm, config, peerbus::codec::bf16{}};
    check_works(moe, comm.size(), comm.rank(), 5);
  });
  CHECK(worst_status == 0);
}

/// Ranks that were configured differently, and the value named with who has what.
template <class Group>
void check_mismatches(std::size_t ranks) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [](auto& comm) {
    struct difference {
      exchange_config theirs;
      std::string_view says;
    };
    const std::size_t last = comm.size() - 1;
    for (const difference& one :
         {difference{{.experts = 7, .hidden = 16, .top_k = 2, .max_tokens = 4},
                     "experts is 6 on rank 0 but 7 on"},
          {{.experts = 6, .hidden = 32, .top_k = 2, .max_tokens = 4},
           "hidden is 16 on rank 0 but 32 on"},
          {{.experts = 6, .hidden = 16, .top_k = 3, .max_tokens = 4},
           "top_k is 2 on rank 0 but 3 on"},
          {{.experts = 6, .hidden = 16, .top_k = 2, .max_tokens = 5},
           "max_tokens is 4 on rank 0 but 5 on"},
          {{.experts = 6, .hidden = 16, .top_k = 2, .max_tokens = 4, .in_flight = 2},
           "in_flight is 1 on rank 0 but 2 on"},
          {{.experts = 6,
            .hidden = 16,
            .top_k = 2,
            .max_tokens = 4,
            .outputs = peerbus::moe::outputs_at::home},
           "outputs is 0 on rank 0 but 1 on"},
          {{.experts = 6, .hidden = 16, .top_k = 2, .max_tokens = 4, .attachments = {8}},
           "attachment is 0 on rank 0 but 8 on"},
          {{.experts = 6, .hidden = 16, .top_k = 2, .max_tokens = 4, .output_attachment = 8},
           "output_attachment is 0 on rank 0 but 8 on"},
          {{.experts = 6, .hidden = 16, .top_k = 2, .max_tokens = 4, .note_bytes = 8},
           "note_bytes is 0 on rank 0 but 8 on"}})
      test::expect_error(errc::mismatch, {one.says, rank_text(last)}, [&] {
        peerbus::moe::exchange moe{comm, comm.rank().index() == last ? one.theirs : config,
                                   peerbus::codec::bf16{}};
      });
    const auto expect_differ = [&](std::string_view says, const auto& ours, const auto& theirs) {
      test::expect_error(errc::mismatch, {says, rank_text(last)}, [&] {
        if (comm.rank().index() == last)
          peerbus::moe::exchange moe{comm, config, peerbus::codec::bf16{}, theirs};
        else
          peerbus::moe::exchange moe{comm, config, peerbus::codec::bf16{}, ours};
      });
    };
    using peerbus::moe::compact;
    expect_differ("alignment is 4 on rank 0 but 7 on", compact{.alignment = 4},
                  compact{.alignment = 7});
    expect_differ("layout is compact on rank 0 but padded on", compact{}, peerbus::moe::padded{});
    expect_differ("layout is rank_major on rank 0 but compact on", peerbus::moe::rank_major{},
                  compact{.alignment = 4});
    peerbus::moe::exchange moe{comm, config, peerbus::codec::bf16{}};
    check_works(moe, comm.size(), comm.rank(), 5);
  });
  CHECK(worst_status == 0);
}

/// Different codecs are a mismatch on every rank, and the communicator goes on.
template <class Group>
void check_different_codecs(std::size_t ranks) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [](auto& comm) {
    test::expect_error(
        errc::mismatch, {"codec is int8_per_token on rank 0 but bf16 on rank 1"}, [&] {
          if (comm.rank() == rank_id{0})
            peerbus::moe::exchange moe{comm, config, peerbus::codec::int8_per_token{}};
          else
            peerbus::moe::exchange moe{comm, config, peerbus::codec::bf16{}};
        });
    peerbus::moe::exchange moe{comm, config, peerbus::codec::bf16{}};
    check_works(moe, comm.size(), comm.rank(), 5);
  });
  CHECK(worst_status == 0);
}

/// One rank does not come: the others say who, what they expected and saw, and the communicator
/// is of no use any more.
template <class Group, class Layout = peerbus::moe::compact>
void check_time_out(std::size_t ranks) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [](auto& comm) {
    peerbus::moe::exchange moe{comm, config, peerbus::codec::int8_per_token{}, Layout{}};
    check_works(moe, comm.size(), comm.rank(), 5);
    auto done = comm.make_window(0, comm.size());
    const rank_id absent{comm.size() - 1};
    const auto patient = peerbus::deadline::after(std::chrono::seconds{60});
    if (comm.rank() == absent) {
      // Still there, so that nothing but the deadline ends the others' waits.
      for (const rank_id peer : comm.ranks())
        if (peer != absent)
          test::expect_ok(
              done.wait(static_cast<peerbus::signal_id>(peer.index()), 1, patient, peer), "wait");
      return;
    }
    const arguments mine;
    const auto short_time = peerbus::deadline::after(std::chrono::milliseconds{50});
    test::expect_error(
        errc::timed_out,
        {"dispatch 2", peerbus::moe::slot_layout<Layout> ? "rows" : "counts",
         rank_text(absent.index()) + " (epoch 1, expected 2; "},
        [&] { (void)moe.dispatch(mine.token_span(), mine.route(), {.until = short_time}); });
    test::expect_error(errc::poisoned, {"dispatch 2", "epoch 1"},
                       [&] { (void)moe.dispatch(mine.token_span(), mine.route()); });
    test::expect_error(errc::poisoned, {"barrier"}, [&] { comm.barrier(); });
    test::expect_error(errc::poisoned, {"make_window"}, [&] { (void)comm.make_window(8, 0); });
    test::expect_ok(done.signal(absent, static_cast<peerbus::signal_id>(comm.rank().index()), 1),
                    "signal");
  });
  CHECK(worst_status == 0);
}

/// The same in combine.
template <class Group>
void check_time_out_in_combine(std::size_t ranks) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [](auto& comm) {
    peerbus::moe::exchange moe{comm, config, peerbus::codec::bf16{}};
    auto done = comm.make_window(0, comm.size());
    const rank_id absent{0};
    const arguments mine;
    const auto got = moe.dispatch(mine.token_span(), mine.route());
    if (comm.rank() == absent) {
      for (const rank_id peer : comm.ranks())
        if (peer != absent)
          test::expect_ok(done.wait(static_cast<peerbus::signal_id>(peer.index()), 1,
                                    peerbus::deadline::after(std::chrono::seconds{60}), peer),
                          "wait");
      return;
    }
    std::vector<bf16> out(mine.tokens.size());
    test::expect_error(
        errc::timed_out, {"combine 1", "outputs", "rank 0 (epoch 0, expected 1; "}, [&] {
          moe.combine(got, out, {.until = peerbus::deadline::after(std::chrono::milliseconds{50})});
        });
    test::expect_error(errc::poisoned, {"combine 1"}, [&] { moe.combine(got, out); });
    test::expect_ok(done.signal(absent, static_cast<peerbus::signal_id>(comm.rank().index()), 1),
                    "signal");
  });
  CHECK(worst_status == 0);
}

}  // namespace refusals
