// SPDX-License-Identifier: MIT
// ctest: tsan
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/logfmt10.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/per_batch.hpp>
#include <peerbus/moe/received.hpp>

#include "support/groups.hpp"
#include "support/logfmt.hpp"
#include "support/ranks.hpp"

namespace beside_rows_test {

// What travels beside rows and outputs: how long it stays, and what misuse is told. The conformance
// suite checks what arrives.

namespace {

using peerbus::bf16;
using peerbus::errc;
using peerbus::rank_id;
using peerbus::moe::exchange_config;
using peerbus::moe::outputs_at;
namespace logfmt10 = peerbus::codec::logfmt10;

constexpr std::size_t in_flight = 3;
constexpr std::size_t notes = 5;
constexpr exchange_config config{.experts = 5,
                                 .hidden = 8,
                                 .top_k = 1,
                                 .max_tokens = 1,
                                 .in_flight = in_flight,
                                 .output_attachment = 8,
                                 .note_bytes = notes * sizeof(std::int32_t)};
constexpr exchange_config bare{.experts = 5, .hidden = 8, .top_k = 1, .max_tokens = 1};

/// What `rank` notes as number `i` in dispatch `number`.
std::int32_t note_of(std::size_t rank, std::uint64_t number, std::size_t i) {
  return static_cast<std::int32_t>(rank * 1000 + number * 10 + i);
}

/// A dispatch of one token to expert `expert`.
struct one_token {
  std::vector<bf16> token = std::vector<bf16>(8, bf16{1.0F});
  std::vector<std::int32_t> expert{0};
  std::vector<float> weight{1.0F};
  std::vector<std::int32_t> note;

  template <class Exchange>
  peerbus::moe::ticket send(Exchange& moe, std::size_t rank, std::uint64_t number) {
    note.clear();
    for (std::size_t i = 0; i < notes; ++i) note.push_back(note_of(rank, number, i));
    const auto begun =
        moe.dispatch_send(token, {expert, weight}, {.note = std::as_bytes(std::span{note})});
    note.assign(notes, -1);  // It is read before the call returns.
    return begun;
  }
};

/// Some ranks are a whole ring of batches ahead of those that still read.
template <class Group>
void check_notes_stay(std::size_t ranks) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [](auto& comm) {
    peerbus::moe::exchange moe{comm, config, peerbus::codec::bf16{}};
    one_token mine;
    std::vector<peerbus::moe::ticket> begun;
    const bool ahead = comm.rank().index() % 2 == 1;
    const auto send_all = [&](std::uint64_t round) {
      begun.clear();
      for (std::size_t b = 0; b < in_flight; ++b)
        begun.push_back(mine.send(moe, comm.rank().index(), round * in_flight + b));
    };
    send_all(0);
    for (std::uint64_t round = 0; round < 4; ++round) {
      for (const auto& one : begun) static_cast<void>(moe.dispatch_recv(one));
      comm.barrier();
      const auto received = begun;
      if (ahead) send_all(round + 1);
      comm.barrier();
      for (std::size_t b = 0; b < in_flight && !ahead; ++b)
        for (const rank_id source : comm.ranks()) {
          const auto note = moe.template note<std::int32_t>(received[b], source);
          test::expect_equal(note.size(), notes, "numbers of a note");
          for (std::size_t i = 0; i < notes; ++i)
            test::expect_equal(note[i], note_of(source.index(), round * in_flight + b, i), "round ",
                               round, ", batch ", b, ", number ", i);
        }
      if (!ahead) send_all(round + 1);
    }
    for (const auto& one : begun) static_cast<void>(moe.dispatch_recv(one));
  });
  CHECK(worst_status == 0);
}

template <class Group>
void check_misuse(std::size_t ranks) {
  const int worst_status = Group::run(ranks, [](auto& comm) {
    peerbus::moe::exchange moe{comm, config, peerbus::codec::bf16{}};
    peerbus::moe::exchange other{comm, bare, peerbus::codec::bf16{}};
    one_token mine;
    const auto expect_misuse = [](std::string_view says, auto&& call) {
      test::expect_error(errc::invalid_argument, {says}, call);
    };
    const auto begun = mine.send(moe, comm.rank().index(), 1);
    expect_misuse(
        "note was given ticket 1, which is not received yet, expected one that is received",
        [&] { static_cast<void>(moe.note(begun, rank_id{0})); });
    const auto rows = moe.dispatch_recv(begun);
    expect_misuse(
        "attached_by was given ticket 1, which is received, expected one that is combined",
        [&] { static_cast<void>(moe.attached_by(begun, rank_id{0})); });
    expect_misuse("columns was given a ticket of another exchange",
                  [&] { static_cast<void>(other.columns(begun)); });
    expect_misuse("columns was given ticket 2, expected one that dispatch_send gave",
                  [&] { static_cast<void>(moe.columns({2, &moe})); });

    std::vector<bf16> out(8);
    const auto plain = other.dispatch(mine.token, {mine.expert, mine.weight});
    test::expect(plain.experts().empty() || plain.rows() == 0 ||
                     plain.experts()[0].output_attachment(0).empty(),
                 "no place for what is not configured");
    expect_misuse("attached is true, expected false, as output_attachment is 0",
                  [&] { other.combine(plain, out, {.attached = true}); });
    expect_misuse("attached is true, expected false, as output_attachment is 0",
                  [&] { other.combine_send(plain, {.attached = true}); });
    other.combine(plain, out);
    moe.combine(rows, out);
    test::expect(!moe.attached_by(begun, comm.rank()), "nothing attached");
  });
  CHECK(worst_status == 0);
}

/// Data of a caller's own, found by the numbers of dispatches.
template <class Group>
void check_per_batch(std::size_t ranks) {
  const int worst_status = Group::run(ranks, [](auto& comm) {
    peerbus::moe::exchange moe{comm, config, peerbus::codec::bf16{}};
    peerbus::moe::per_batch<std::uint64_t> kept{std::vector<std::uint64_t>(in_flight)};
    one_token mine;
    std::uint64_t refused = 0;
    for (std::uint64_t round = 0; round < 3 * in_flight; ++round) {
      const std::uint64_t number = moe.next_dispatch();
      test::expect_equal(number, round + 1, "number of the next dispatch");
      if (round % 4 == 2) {
        test::expect_error(errc::invalid_argument, {"refuses"}, [&] {
          static_cast<void>(moe.dispatch(mine.token, {mine.expert, mine.weight}, {.refuse = true}));
        });
        ++refused;
        continue;
      }
      kept.of(number) = number;
      const auto begun = mine.send(moe, comm.rank().index(), number);
      test::expect_equal(begun.number, number, "number of the ticket");
      static_cast<void>(moe.dispatch_recv(begun));
      test::expect_equal(kept.of(begun.number), number, "what was kept for it");
      test::expect_equal(kept.index_of(number), kept.index_of(number + in_flight),
                         "the entry that replaces it");
    }
    test::expect_equal(kept.size(), in_flight, "entries");
    test::expect_equal(refused, 2U, "refused dispatches");
  });
  CHECK(worst_status == 0);
}

constexpr std::size_t coded_hidden = 384;
constexpr exchange_config coded_config{.experts = 4,
                                       .hidden = coded_hidden,
                                       .top_k = 2,
                                       .max_tokens = 3,
                                       .output_attachment = logfmt10::head_bytes(coded_hidden),
                                       .logfmt_outputs = true};

/// The output of `expert` for token `t` of `rank`. Large for one expert, so that it is not coded.
std::vector<bf16> output_of(std::size_t expert, std::size_t rank, std::size_t t) {
  std::vector<bf16> values(coded_hidden);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = bf16{(expert == 3 ? 2.0F : 0.01F) *
                     std::sin(static_cast<float>(1 + i * (expert + 1) + 7 * rank + t))};
  return values;
}

/// Ranks for which `codes(rank)` is true give their outputs in LogFMT-10.
template <class Group, class Codes>
void check_logfmt(std::size_t ranks, outputs_at where, Codes codes) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [&](auto& comm) {
    exchange_config chosen = coded_config;
    chosen.outputs = where;
    peerbus::moe::exchange moe{comm, chosen, peerbus::codec::bf16{}};
    const std::size_t own = comm.rank().index();
    const std::size_t tokens = own % 4;
    const std::vector<bf16> sent(tokens * coded_hidden);
    std::vector<std::int32_t> experts;
    std::vector<float> weights;
    for (std::size_t t = 0; t < tokens; ++t)
      for (const std::size_t k : {0U, 1U}) {
        experts.push_back(t == 1 && k == 0 ? -1 : static_cast<std::int32_t>((own + t + 2 * k) % 4));
        weights.push_back(0.5F + static_cast<float>(k));
      }
    std::vector<bf16> out(sent.size());
    for (std::size_t round = 0; round < 3; ++round) {
      const auto rows = moe.dispatch(sent, {experts, weights});
      const bool coded = round != 1 && codes(own);
      for (const auto& expert : rows.experts())
        for (std::size_t i = 0; i < expert.count(); ++i) {
          const auto from = expert.origin(i);
          const auto values = output_of(expert.id(), from.rank.index(), from.token);
          if (coded)
            expert.encode_output(i, values);
          else
            std::copy(values.begin(), values.end(), expert.output(i).begin());
        }
      moe.combine(rows, out, {.attached = coded});
      for (std::size_t t = 0; t < tokens; ++t) {
        std::vector<float> sum(coded_hidden);
        for (std::size_t k = 0; k < 2; ++k) {
          const std::int32_t expert = experts[2 * t + k];
          if (expert < 0) continue;
          const auto number = static_cast<std::size_t>(expert);
          const auto plain = output_of(number, own, t);
          const bool was_coded = round != 1 && codes(moe.placement().owner(number).index());
          const auto values = was_coded ? test::through_logfmt(plain) : plain;
          for (std::size_t i = 0; i < sum.size(); ++i)
            sum[i] = std::fma(weights[2 * t + k], static_cast<float>(values[i]), sum[i]);
        }
        for (std::size_t i = 0; i < sum.size(); ++i)
          test::expect(out[t * coded_hidden + i] == bf16{sum[i]}, "round ", round, ", token ", t,
                       ", channel ", i);
      }
    }
  });
  CHECK(worst_status == 0);
}

}  // namespace

TEST_CASE("data of a caller's own is found by the number of a dispatch") {
  check_per_batch<test::direct_threads>(2);
  check_per_batch<test::staged_threads>(1);
}

TEST_CASE("notes stay while others are as many batches ahead as they may be") {
  for (const std::size_t n : {1U, 2U, 3U, 7U}) {
    check_notes_stay<test::direct_threads>(n);
    check_notes_stay<test::staged_threads>(n);
  }
}

TEST_CASE("ranks give outputs in LogFMT-10, or as they are, as each chooses") {
  const auto all = [](std::size_t) { return true; };
  const auto odd = [](std::size_t rank) { return rank % 2 == 1; };
  for (const auto where : {outputs_at::expert, outputs_at::home})
    for (const std::size_t n : {1U, 2U, 5U}) {
      check_logfmt<test::direct_threads>(n, where, all);
      check_logfmt<test::staged_threads>(n, where, odd);
      check_logfmt<test::direct_threads>(n, where, odd);
    }
}

TEST_CASE("what is not there yet, or not configured, is told") {
  check_misuse<test::direct_threads>(2);
  check_misuse<test::staged_threads>(2);
}

TEST_CASE("a bound of one dispatch: blocks of padded rows, and what differs or is too large") {
  CHECK(test::direct_threads::run(3, [](auto& comm) {
          using peerbus::moe::padded;
          constexpr exchange_config four{.experts = 3, .hidden = 8, .top_k = 1, .max_tokens = 4};
          peerbus::moe::exchange moe{comm, four, peerbus::codec::bf16{}, padded{}};
          const std::size_t rank = comm.rank().index();
          const auto dispatch = [&](std::size_t count, std::size_t bound) {
            const std::vector<bf16> tokens(count * 8, bf16{static_cast<float>(rank + 1)});
            const std::vector<std::int32_t> experts(count, 1);
            const std::vector<float> weights(count, 1.0F);
            return moe.dispatch(tokens, {experts, weights}, {.bound = bound});
          };
          for (const std::size_t bound : {4U, 1U, 2U, 0U}) {
            const auto got = dispatch(bound == 1 ? 1 : 2, bound);
            test::expect_equal(
                got.all_rows().size(),
                comm.size() * (bound == 0 ? 4 : bound) * 8 * moe.placement().count(comm.rank()),
                "rows of the blocks");
            std::vector<bf16> sums((bound == 1 ? 1 : 2) * 8);
            for (const auto& rows : got.experts())
              std::copy_n(rows.rows().data(), rows.rows().size(), rows.outputs().data());
            moe.combine(got, sums);
            for (const bf16 sum : sums)
              test::expect_equal(static_cast<float>(sum), static_cast<float>(rank + 1), "sum");
          }
          test::expect_error(errc::refused, {"a bound of ", "tokens, expected that of this rank, "},
                             [&] { static_cast<void>(dispatch(1, rank == 1 ? 3 : 2)); });
          test::expect_error(rank == 1 ? errc::invalid_argument : errc::refused,
                             {"a bound of 5 tokens, expected at most max_tokens, 4"},
                             [&] { static_cast<void>(dispatch(1, rank == 1 ? 5 : 2)); });
          test::expect_error(rank == 1 ? errc::invalid_argument : errc::refused,
                             {"2 tokens, expected at most max_tokens, 1"},
                             [&] { static_cast<void>(dispatch(rank == 1 ? 2 : 1, 1)); });
          static_cast<void>(dispatch(2, 2));
        }) == 0);
}

}  // namespace beside_rows_test
