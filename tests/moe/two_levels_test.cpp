// SPDX-License-Identifier: MIT
// ctest: tsan
#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/threads.hpp>
#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/cost_table.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/kept_rows.hpp>
#include <peerbus/moe/lane.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/relay.hpp>
#include <peerbus/moe/two_level_exchange.hpp>
#include <peerbus/transport/loopback.hpp>
#include <peerbus/transport/planes.hpp>

#include "support/exchange_check.hpp"
#include "support/indirect.hpp"
#include "support/on_lanes.hpp"
#include "support/oracle.hpp"
#include "support/ranks.hpp"
#include "support/two_level_check.hpp"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // Of `two_level_exchange`.

namespace two_levels_test {

// The choice between one level and two, what is refused, halves of operations, and bytes.

namespace {

using peerbus::bf16;
using peerbus::errc;
using peerbus::rank_id;
using peerbus::codec::int8_per_token;
using peerbus::moe::estimate_relay;
using peerbus::moe::exchange_config;
using peerbus::moe::expected_copies;
using peerbus::moe::relay;
using peerbus::moe::two_level_exchange;
using test::lazy_hosts;
using threads = test::threads_over<lazy_hosts>;
using two_levels = two_level_exchange<lazy_hosts, int8_per_token>;
/// For lanes, all of which put: `indirect` takes one thread at a time.
using plain_hosts = test::on_hosts<peerbus::loopback, peerbus::loopback>;

/// 13 experts do not divide by 4 ranks, nor equally by 2 hosts of 2 ranks in order.
constexpr exchange_config config{
    .experts = 13, .hidden = 32, .top_k = 3, .max_tokens = 5, .in_flight = 3};

test::scenario scenario_of(std::size_t ranks, std::uint64_t seed) {
  test::scenario made{{ranks, config.experts, config.hidden, config.top_k}, {}};
  for (std::size_t r = 0; r < ranks; ++r)
    made.inputs.push_back(
        oracle::make_input(made.shape, r, 1 + (r + seed) % 5, oracle::routes::uniform, seed));
  return made;
}

/// What a rank with bad input changes in it, and what errors say of it.
struct mistake {
  const char* says;
  std::function<void(oracle::input&)> make;
};
const mistake mistakes[] = {
    {"expert id 13 at token 0, slot 1, expected -1 or 0 to 12",
     [](oracle::input& mine) { mine.experts[1] = 13; }},
    {"expert id -2 at token 0, slot 0", [](oracle::input& mine) { mine.experts[0] = -2; }},
    {"again at token 0, slot 2", [](oracle::input& mine) { mine.experts[2] = mine.experts[0]; }},
    {"6 tokens, expected at most max_tokens, 5",
     [](oracle::input& mine) {
       mine.tokens.resize(6 * config.hidden);
       mine.experts.resize(6 * config.top_k, -1);
       mine.weights.resize(6 * config.top_k);
     }},
    {"a routing with", [](oracle::input& mine) { mine.weights.pop_back(); }}};

peerbus::moe::routing route_of(const oracle::input& mine) {
  return {std::span<const std::int64_t>{mine.experts}, mine.weights};
}

/// Calls `f`, which must fail as on a rank whose peer `bad` made a mistake, or on `bad` itself.
template <class F>
void expect_refused(rank_id rank, rank_id bad, std::string_view says, F&& f) {
  if (rank == bad)
    test::expect_error(errc::invalid_argument, {"was given", says}, f);
  else
    test::expect_error(errc::refused,
                       {"did not happen: rank " + std::to_string(bad.index()) + " was given", says},
                       f);
}

}  // namespace

TEST_CASE("two levels: expected copies") {
  // E = 256, K = 8, 8 ranks on each host.
  struct row {
    std::size_t hosts;
    double by_expert, by_rank, by_group, reached;
  };
  for (const row& one : {row{2, 4.000, 3.262, 0.997, 1.993}, row{4, 6.000, 5.450, 2.711, 3.614},
                         row{8, 7.000, 6.716, 4.633, 5.295}, row{16, 7.500, 7.397, 6.116, 6.523},
                         row{32, 7.750, 7.750, 7.040, 7.267}}) {
    const auto found = expected_copies(256, 8, 8 * one.hosts, one.hosts);
    CHECK(std::abs(found.by_expert - one.by_expert) < 0.0006);
    CHECK(std::abs(found.by_rank - one.by_rank) < 0.0006);
    CHECK(std::abs(found.by_group - one.by_group) < 0.0006);
    CHECK(std::abs(found.groups_reached - one.reached) < 0.0006);
  }
  static_assert(expected_copies(8, 8, 4, 1).by_group == 0);
  static_assert(expected_copies(0, 8, 4, 2).by_expert == 0);
}

TEST_CASE("two levels: the rule") {
  constexpr auto size = [](std::size_t hosts, std::size_t tokens) {
    return peerbus::moe::relay_size{256, 8, 8 * hosts, hosts, tokens, 7172, 14336, false};
  };
  static_assert(estimate_relay(size(2, 128)).pays());
  static_assert(estimate_relay(size(4, 128)).pays());
  static_assert(!estimate_relay(size(16, 128)).pays());
  static_assert(!estimate_relay(size(1, 128)).pays(), "nothing is far");
  static_assert(!estimate_relay(size(2, 1)).pays(), "the hop costs more than the bytes");
  static_assert(
      estimate_relay(size(16, 128), {.far_byte_ns = 1, .near_byte_ns = 0, .hop_us = 0}).pays());
  peerbus::cost_table costs;
  CHECK(peerbus::moe::relay_costs_of(costs).hop_us == peerbus::moe::relay_costs{}.hop_us);
  costs.set("moe.relay.hop_us", 7);
  CHECK(peerbus::moe::relay_costs_of(costs).hop_us == 7);
}

TEST_CASE("two levels: never is an exchange, automatic follows the rule") {
  test::pretended = {2, false};
  const int worst_status = threads::run(4, [](auto& comm) {
    const test::scenario from = scenario_of(comm.size(), 1);
    const oracle::input& mine = from.inputs[comm.rank().index()];
    // A batch of 5 short tokens: one level.
    for (const relay choice : {relay::never, relay::automatic}) {
      two_levels moe{comm, config, choice};
      test::expect(!moe.chosen().relays && moe.chosen().groups == 2, "one level");
      peerbus::moe::exchange flat{comm, config, int8_per_token{}};
      test::expect_equal(moe.window_bytes(), flat.map().total, "bytes");
      const auto got = moe.dispatch(mine.tokens, route_of(mine));
      const auto wanted = flat.dispatch(mine.tokens, route_of(mine));
      test::check_received(got, from, comm.rank());
      test::expect_same_bytes(got.all_rows(), std::as_bytes(wanted.all_rows()), "rows");
      test::run_experts(got);
      test::run_experts(wanted);
      std::vector<bf16> out(mine.tokens.size());
      std::vector<bf16> flat_out(mine.tokens.size());
      moe.combine(got, out);
      flat.combine(wanted, flat_out);
      test::expect_same_bytes(std::span<const bf16>{out},
                              std::as_bytes(std::span<const bf16>{flat_out}), "out");
    }
    // The same where crossing is dear.
    peerbus::cost_table costs;
    costs.set("moe.relay.far_byte_ns", 1000);
    exchange_config dear = config;
    dear.costs = &costs;
    two_levels moe{comm, dear, relay::automatic};
    test::expect(moe.chosen().relays, describe(moe.chosen()));
    test::expect(describe(moe.chosen()).find("takes less time") != std::string::npos, "the reason");
    test::two_levels::check_round(moe, from, comm.rank());
  });
  CHECK(worst_status == 0);
}

TEST_CASE_TEMPLATE("two levels: groups with fewer experts than a token has slots", Layout,
                   peerbus::moe::compact, peerbus::moe::padded, peerbus::moe::rank_major,
                   peerbus::moe::slots, peerbus::moe::expert_slots, peerbus::moe::automatic) {
  struct grid {
    std::size_t ranks;
    test::hosts hosts;
  };
  for (const grid& one : {grid{4, {2, false}}, grid{5, {2, false}}, grid{6, {3, true}}})
    for (const std::size_t experts : {5U, 7U}) {
      CAPTURE(one.ranks);
      CAPTURE(experts);
      test::pretended = one.hosts;
      const int worst_status = threads::run(one.ranks, [experts](auto& comm) {
        exchange_config few = config;
        few.experts = experts;
        few.top_k = 5;
        two_level_exchange<lazy_hosts, int8_per_token, Layout> moe{comm, few, relay::always};
        for (std::uint64_t seed = 0; seed < 4; ++seed) {
          test::scenario from{{comm.size(), few.experts, few.hidden, few.top_k}, {}};
          for (std::size_t r = 0; r < comm.size(); ++r)
            from.inputs.push_back(oracle::make_input(
                from.shape, r, (r + seed) % 6,
                seed % 2 == 0 ? oracle::routes::uniform : oracle::routes::holes, seed));
          test::two_levels::check_round(moe, from, comm.rank());
        }
      });
      CHECK(worst_status == 0);
    }
}

TEST_CASE_TEMPLATE("two levels: groups without experts", Layout, peerbus::moe::compact,
                   peerbus::moe::padded, peerbus::moe::rank_major, peerbus::moe::slots,
                   peerbus::moe::expert_slots, peerbus::moe::automatic) {
  struct grid {
    test::hosts hosts;
    std::vector<std::uint32_t> experts_of_rank;
  };
  for (const grid& one : {grid{{2, false}, {7, 6, 0, 0}}, grid{{2, false}, {0, 0, 1, 12}},
                          grid{{2, false}, {0, 0, 5, 5, 3}}, grid{{3, true}, {0, 6, 0, 0, 7, 0}}}) {
    const std::size_t ranks = one.experts_of_rank.size();
    CAPTURE(one.experts_of_rank);
    test::pretended = one.hosts;
    const int worst_status = threads::run(ranks, [&](auto& comm) {
      exchange_config apart = config;
      apart.experts_of_rank = one.experts_of_rank;
      two_level_exchange<lazy_hosts, int8_per_token, Layout> moe{comm, apart, relay::always};
      std::vector<std::size_t> owner;
      for (std::size_t r = 0; r < ranks; ++r) owner.insert(owner.end(), one.experts_of_rank[r], r);
      for (std::uint64_t seed = 0; seed < 4; ++seed) {
        const test::scenario from = scenario_of(ranks, seed);
        const oracle::input& mine = from.inputs[comm.rank().index()];
        const auto got = moe.dispatch(mine.tokens, route_of(mine));
        test::run_experts(got);
        std::vector<bf16> out(mine.tokens.size());
        moe.combine(got, out);
        test::check_combined(
            out,
            test::two_levels::combined(from.shape, mine, oracle::codec_of<int8_per_token>::encode,
                                       peerbus::moe::layout_by_rank<Layout>, owner),
            config.hidden, 0);
      }
    });
    CHECK(worst_status == 0);
  }
}

TEST_CASE("two levels: groups and configurations that cannot") {
  test::pretended = {2, false};
  const int worst_status = threads::run(4, [](auto& comm) {
    const auto refused = [&](errc code, std::string_view says, exchange_config other,
                             relay choice = relay::always) {
      test::expect_error(code, {says}, [&] { two_levels moe{comm, other, choice}; });
    };
    exchange_config other = config;
    other.note_bytes = std::size_t{1} << 24U;
    refused(errc::unsupported, "the level within groups cannot be made: exchange: note_bytes",
            other);
    two_levels flat{comm, other, relay::automatic};
    test::expect(!flat.chosen().relays, "one level");
    test::expect(flat.chosen().why.find("within groups") != std::string::npos, flat.chosen().why);
    other = config;
    other.output_attachment = 8;
    refused(errc::unsupported, "output_attachment is 8, expected 0", other);
    other = config;
    other.same_bits = true;
    refused(errc::unsupported, "relay is always, but same_bits is set", other);
    other = config;
    if (comm.rank() == rank_id{3}) other.hidden = 48;
    refused(errc::mismatch, "hidden is 32 on rank 0 but 48 on rank 3", other);
    refused(errc::mismatch, "relay is always on rank 0 but never on rank 3", config,
            comm.rank() == rank_id{3} ? relay::never : relay::always);
    two_levels moe{comm, config, relay::always};
    test::two_levels::check_round(moe, scenario_of(comm.size(), 2), comm.rank());
    test::expect_error(errc::unsupported, {"attached_by: relay is used"},
                       [&] { static_cast<void>(moe.attached_by({1, nullptr}, rank_id{0})); });
    // With one level they come home.
    other = config;
    other.output_attachment = 8;
    two_levels flat_with{comm, other, relay::never};
    const test::scenario from = scenario_of(comm.size(), 2);
    const oracle::input& mine = from.inputs[comm.rank().index()];
    const auto rows = flat_with.dispatch(mine.tokens, route_of(mine));
    test::run_experts(rows);
    std::vector<bf16> out(mine.tokens.size());
    flat_with.combine(rows, out, {.attached = comm.rank() == rank_id{1}});
    for (const rank_id rank : comm.ranks())
      test::expect(flat_with.attached_by(rows.ticket(), rank) == (rank == rank_id{1}), "attached");
    test::expect_equal(flat_with.returned_attachment(rows.ticket(), 0, 0).size(), 8U, "bytes");
  });
  CHECK(worst_status == 0);
}

TEST_CASE("two levels: bad input is refused on all ranks") {
  for (const bool interleaved : {false, true}) {
    test::pretended = {2, interleaved};
    const int worst_status = threads::run(4, [](auto& comm) {
      two_levels moe{comm, config, relay::always};
      std::uint64_t seed = 0;
      for (const mistake& one : mistakes) {
        const rank_id bad{seed % comm.size()};
        const test::scenario from = scenario_of(comm.size(), ++seed);
        oracle::input mine = from.inputs[comm.rank().index()];
        if (comm.rank() == bad) one.make(mine);
        expect_refused(comm.rank(), bad, one.says,
                       [&] { static_cast<void>(moe.dispatch(mine.tokens, route_of(mine))); });
        test::two_levels::check_round(moe, from, comm.rank());
      }
      // Two ranks at once: both know their own mistake, and the others one of the two.
      oracle::input mine = scenario_of(comm.size(), 9).inputs[comm.rank().index()];
      const bool is_bad = comm.rank() != rank_id{0} && comm.rank() != rank_id{3};
      if (is_bad) mine.experts[0] = 77;
      test::expect_error(is_bad ? errc::invalid_argument : errc::refused, {"expert id 77"},
                         [&] { static_cast<void>(moe.dispatch(mine.tokens, route_of(mine))); });
      test::expect_error(
          is_bad ? errc::invalid_argument : errc::refused, {"arguments that its caller refuses"},
          [&] { static_cast<void>(moe.dispatch({}, route_of({}), {.refuse = is_bad})); });
      test::two_levels::check_round(moe, scenario_of(comm.size(), 3), comm.rank());
    });
    CHECK(worst_status == 0);
  }
}

TEST_CASE("two levels: rows that a rank keeps") {
  test::pretended = {2, false};
  const int worst_status = threads::run(4, [](auto& comm) {
    exchange_config small = config;
    small.in_flight = 1;
    two_levels moe{comm, small, relay::always};
    const test::scenario from = scenario_of(comm.size(), 6);
    const oracle::input& mine = from.inputs[comm.rank().index()];
    std::vector<bf16> out(mine.tokens.size());
    const auto dispatch = [&] { return moe.dispatch(mine.tokens, route_of(mine)); };
    const auto rows = dispatch();
    const rank_id keeper{1};
    std::optional<peerbus::moe::kept_rows> kept;
    if (comm.rank() == keeper) kept = moe.keep(rows);
    const auto refuse = [&] {
      expect_refused(comm.rank(), keeper, "memory with the rows of dispatch 1, which",
                     [&] { static_cast<void>(dispatch()); });
    };
    refuse();
    test::expect_error(errc::invalid_argument,
                       {"rows of dispatch 1, which dispatch 2 has replaced"},
                       [&] { moe.combine(rows, out); });
    refuse();
    kept.reset();
    test::two_levels::check_round(moe, from, comm.rank());
    peerbus::moe::exchange slots{comm,
                                 [&] {
                                   small.relay = relay::always;
                                   return small;
                                 }(),
                                 int8_per_token{}, peerbus::moe::expert_slots{}};
    const auto in_slots = slots.dispatch(mine.tokens, route_of(mine));
    test::expect_error(errc::unsupported, {"keep: slots and relay"},
                       [&] { static_cast<void>(slots.keep(in_slots)); });
  });
  CHECK(worst_status == 0);
}

TEST_CASE("two levels: a refused combine can be repeated") {
  test::pretended = {2, false};
  const int worst_status = threads::run(4, [](auto& comm) {
    two_levels moe{comm, config, relay::always};
    const test::scenario from = scenario_of(comm.size(), 4);
    const oracle::input& mine = from.inputs[comm.rank().index()];
    const auto got = moe.dispatch(mine.tokens, route_of(mine));
    std::vector<bf16> out(mine.tokens.size());
    for (std::size_t i = 0; i < 2 * comm.size(); ++i) {
      const rank_id bad{i % comm.size()};
      test::run_experts(got);
      const bool is_bad = comm.rank() == bad;
      if (i < comm.size())
        expect_refused(comm.rank(), bad, "out with", [&] {
          moe.combine(got, std::span{out}.first(out.size() - (is_bad ? 1 : 0)));
        });
      else
        expect_refused(comm.rank(), bad, "its caller refuses", [&] {
          moe.combine_send(got, {.refuse = is_bad});
          moe.combine_recv(got, out);
        });
    }
    const std::vector<float> weights(mine.weights.size());
    test::expect_error(errc::invalid_argument, {"combine_terms weights"},
                       [&] { moe.combine(got, out, {.terms = {.weights = weights}}); });
    test::run_experts(got);
    // With a bias: zeros change nothing.
    const std::vector<bf16> zeros(out.size());
    moe.combine(got, out, {.terms = {.bias = {zeros, {}}}});
    test::check_combined(out,
                         test::two_levels::combined(
                             from.shape, mine, oracle::codec_of<int8_per_token>::encode, false),
                         config.hidden, 0);
    test::expect_error(errc::invalid_argument, {"combined already"},
                       [&] { moe.combine(got, out); });
  });
  CHECK(worst_status == 0);
}

TEST_CASE_TEMPLATE("two levels: halves, and a refusal between batches in flight", Layout,
                   peerbus::moe::compact, peerbus::moe::expert_slots) {
  test::pretended = {2, true};
  const int worst_status = threads::run(4, [](auto& comm) {
    two_level_exchange moe{comm, config, relay::always, int8_per_token{}, Layout{}};
    std::vector<std::int64_t> waited(comm.size());
    for (std::uint64_t round = 0; round < 8; ++round) {
      const rank_id bad{round % comm.size()};
      std::vector<test::scenario> from;
      std::vector<oracle::input> mine;
      for (std::uint64_t i = 0; i < 3; ++i) {
        from.push_back(scenario_of(comm.size(), 3 * round + i));
        mine.push_back(from[i].inputs[comm.rank().index()]);
      }
      const auto first = moe.dispatch_send(mine[0].tokens, route_of(mine[0]));
      peerbus::moe::ticket second{};
      if (comm.rank() == bad) mine[1].experts[0] = 50;
      const auto send_second = [&] {
        second = moe.dispatch_send(mine[1].tokens, route_of(mine[1]));
      };
      if (comm.rank() == bad)
        expect_refused(comm.rank(), bad, "expert id 50", send_second);
      else
        send_second();
      const auto third = moe.dispatch_send(mine[2].tokens, route_of(mine[2]));
      if (comm.rank() != bad)
        test::expect_error(errc::invalid_argument, {"in the order in which they were sent"},
                           [&] { static_cast<void>(moe.dispatch_recv(third)); });
      const auto rows = moe.dispatch_recv(first, {.waited = waited});
      test::two_levels::check(rows, from[0], comm.rank().index());
      test::run_experts(rows);
      std::vector<bf16> first_out(mine[0].tokens.size());
      // Now and then nobody comes to the refused batch before this one is home.
      moe.combine_send(rows);
      if (round % 2 == 0) moe.combine_recv(rows, first_out);
      if (comm.rank() != bad)
        expect_refused(comm.rank(), bad, "expert id 50",
                       [&] { static_cast<void>(moe.dispatch_recv(second)); });
      const auto last = moe.dispatch_recv(third);
      test::two_levels::check(last, from[2], comm.rank().index());
      test::run_experts(last);
      if (round % 2 != 0) moe.combine_recv(rows, first_out);
      std::vector<bf16> last_out(mine[2].tokens.size());
      moe.combine(last, last_out);
      const auto check_out = [&](std::span<const bf16> out, std::size_t i) {
        const auto encode = oracle::codec_of<int8_per_token>::encode;
        test::check_combined(out, test::two_levels::combined(from[i].shape, mine[i], encode, false),
                             config.hidden, 0);
      };
      check_out(first_out, 0);
      check_out(last_out, 2);
    }
    // More refusals of one rank than there are places for them, while the others take their time.
    for (std::uint64_t round = 0; round < 4 * config.in_flight; ++round) {
      oracle::input mine = scenario_of(comm.size(), round).inputs[comm.rank().index()];
      const rank_id bad{2};
      if (comm.rank() == bad) mine.experts[1] = 99;
      expect_refused(comm.rank(), bad, "expert id 99",
                     [&] { static_cast<void>(moe.dispatch(mine.tokens, route_of(mine))); });
    }
    test::two_levels::check_round(moe, scenario_of(comm.size(), 5), comm.rank());
    test::expect(std::ranges::all_of(waited, [](auto ns) { return ns >= 0; }), "waits");
    const test::scenario from = scenario_of(comm.size(), 1);
    const oracle::input& mine = from.inputs[comm.rank().index()];
    // Nobody may send where a batch is still on its way home.
    const auto rows = moe.dispatch(mine.tokens, route_of(mine));
    moe.combine_send(rows);
    for (std::size_t i = 1; i < config.in_flight; ++i)
      static_cast<void>(moe.dispatch(mine.tokens, route_of(mine)));
    test::expect_error(errc::invalid_argument, {"on its way home"},
                       [&] { static_cast<void>(moe.dispatch(mine.tokens, route_of(mine))); });
  });
  CHECK(worst_status == 0);
}

TEST_CASE_TEMPLATE("two levels: notes, between groups of equal and of different sizes", Layout,
                   peerbus::moe::compact, peerbus::moe::expert_slots) {
  struct row {
    std::size_t ranks;
    test::hosts hosts;
  };
  for (const row& one : {row{4, {2, false}}, row{3, {2, true}}, row{5, {2, false}}}) {
    test::pretended = one.hosts;
    const int worst_status = threads::run(one.ranks, [](auto& comm) {
      exchange_config with_notes = config;
      with_notes.note_bytes = 12;
      using note = std::array<std::uint32_t, 3>;
      const auto note_of = [](std::size_t rank, std::uint64_t round) {
        return note{static_cast<std::uint32_t>(rank), static_cast<std::uint32_t>(round), 7};
      };
      const auto gives = [](std::size_t rank, std::uint64_t round) {
        return round != 3 && (rank + round) % 3 != 0;
      };
      for (const relay choice : {relay::always, relay::never}) {
        two_level_exchange moe{comm, with_notes, choice, int8_per_token{}, Layout{}};
        test::expect(moe.chosen().relays == (choice == relay::always), "as asked");
        for (std::uint64_t round = 0; round < 8; ++round) {
          const oracle::input mine = scenario_of(comm.size(), round).inputs[comm.rank().index()];
          const note own = note_of(comm.rank().index(), round);
          const auto given = gives(comm.rank().index(), round) ? std::as_bytes(std::span{own})
                                                               : std::span<const std::byte>{};
          if (round == 5) {
            const bool is_bad = comm.rank() == rank_id{1};
            test::expect_error(
                is_bad ? errc::invalid_argument : errc::refused, {"note of 8 bytes"}, [&] {
                  static_cast<void>(moe.dispatch(
                      mine.tokens, route_of(mine),
                      {.note = is_bad ? std::as_bytes(std::span{own}).first(8) : given}));
                });
            continue;
          }
          const auto sent = moe.dispatch_send(mine.tokens, route_of(mine), {.note = given});
          test::expect_error(errc::invalid_argument, {"note was given ticket"},
                             [&] { static_cast<void>(moe.note(sent, rank_id{0})); });
          const auto rows = moe.dispatch_recv(sent);
          for (const rank_id source : comm.ranks()) {
            const auto got = moe.template note<std::uint32_t>(rows.ticket(), source);
            const note wanted = note_of(source.index(), round);
            test::expect(std::ranges::equal(got, gives(source.index(), round)
                                                     ? std::span<const std::uint32_t>{wanted}
                                                     : std::span<const std::uint32_t>{}),
                         "the note of rank " + std::to_string(source.index()));
          }
        }
      }
    });
    CHECK(worst_status == 0);
  }
}

TEST_CASE("two levels: lanes") {
  for (const std::size_t ranks : {4U, 5U}) {
    test::pretended = {2, ranks == 4};
    const int worst_status = test::threads_over<plain_hosts>::run(ranks, [](auto& comm) {
      two_level_exchange moe{comm, config, relay::always, int8_per_token{}};
      std::vector<std::int64_t> waited(comm.size());
      for (std::uint64_t round = 0; round < 6; ++round) {
        const test::scenario from = scenario_of(comm.size(), round);
        oracle::input mine = from.inputs[comm.rank().index()];
        const bool is_bad = comm.rank() == rank_id{round % comm.size()};
        if (is_bad) mine.experts[0] = 66;
        const auto dispatch = [&] {
          std::optional<typename decltype(moe)::received_type> rows;
          test::on_lanes(3, [&](peerbus::moe::lane as) {
            const auto got =
                moe.dispatch(mine.tokens, route_of(mine), {.as = as, .waited = waited});
            if (as.index == 0) rows.emplace(got);
          });
          return *rows;
        };
        expect_refused(comm.rank(), rank_id{round % comm.size()}, "expert id 66",
                       [&] { static_cast<void>(dispatch()); });
        mine = from.inputs[comm.rank().index()];
        const auto rows = dispatch();
        test::two_levels::check(rows, from, comm.rank().index());
        test::run_experts(rows);
        std::vector<bf16> out(mine.tokens.size());
        expect_refused(comm.rank(), rank_id{round % comm.size()}, "its caller refuses", [&] {
          test::on_lanes(3, [&](peerbus::moe::lane as) {
            moe.combine(rows, out, {.as = as, .refuse = is_bad, .waited = waited});
          });
        });
        test::run_experts(rows);
        test::on_lanes(3, [&](peerbus::moe::lane as) {
          if (round % 2 == 0) return moe.combine(rows, out, {.as = as});
          moe.combine_send(rows, {.as = as});
          moe.combine_recv(rows, out, {.as = as});
        });
        test::check_combined(out,
                             test::two_levels::combined(
                                 from.shape, mine, oracle::codec_of<int8_per_token>::encode, false),
                             config.hidden, 0);
      }
      test::two_levels::check_round(moe, scenario_of(comm.size(), 7), comm.rank());
      comm.barrier();
      // Lanes that do not fit together leave the ranks out of step.
      if (comm.rank() == rank_id{0})
        test::expect_error(errc::invalid_argument, {"lane 1 of 1"}, [&] {
          static_cast<void>(moe.dispatch({}, route_of({}), {.as = {1, 1}}));
        });
    });
    CHECK(worst_status == 0);
  }
}

TEST_CASE("two levels: the rows that ranks know of") {
  for (const bool interleaved : {false, true}) {
    test::pretended = {2, interleaved};
    // Of all ranks, with two levels.
    std::atomic<std::size_t> handed_on{0};
    std::atomic<std::size_t> wanted_handed_on{0};
    const int worst_status = threads::run(5, [&](auto& comm) {
      const test::scenario from = scenario_of(comm.size(), 1);
      const std::size_t rank = comm.rank().index();
      const oracle::input& mine = from.inputs[rank];
      const auto owner = oracle::owners(from.shape);
      const auto host_of = [&](std::size_t r) { return test::pretended.host_of(r, comm.size()); };
      // Rows of other ranks with one level, and groups that get a token with two.
      std::size_t near_rows = 0;
      std::size_t far_rows = 0;
      std::size_t crossings = 0;
      for (std::size_t t = 0; t < mine.count; ++t) {
        std::array<bool, 2> reached{};
        for (std::size_t k = 0; k < config.top_k; ++k) {
          const std::int64_t expert = mine.experts[t * config.top_k + k];
          if (expert == -1) continue;
          const std::size_t at = owner[static_cast<std::size_t>(expert)];
          if (at != rank) ++(host_of(at) == host_of(rank) ? near_rows : far_rows);
          reached[host_of(at)] = true;
          if (test::pretended.place_of(at, comm.size()) !=
              test::pretended.hands_on(rank, comm.size()))
            ++wanted_handed_on;
        }
        if (reached[1 - host_of(rank)]) ++crossings;
      }
      constexpr std::size_t row_bytes = config.hidden + sizeof(float) + 8;
      constexpr std::size_t slot_bytes = 8 * config.top_k;
      constexpr std::size_t output_bytes = 2 * config.hidden;
      {
        two_levels moe{comm, config, relay::never};
        const auto got = moe.dispatch(mine.tokens, route_of(mine));
        const auto found = moe.traffic(got.ticket());
        test::expect_equal(found.near_rows, near_rows, "near rows");
        test::expect_equal(found.far_rows, far_rows, "far rows");
        test::expect_equal(found.near_bytes, near_rows * row_bytes, "near bytes");
        test::expect_equal(found.far_bytes, far_rows * row_bytes, "far bytes");
        test::expect_equal(found.near_output_bytes, near_rows * output_bytes, "near outputs");
        test::expect_equal(found.far_output_bytes, far_rows * output_bytes, "far outputs");
      }
      two_levels moe{comm, config, relay::always};
      const auto got = moe.dispatch(mine.tokens, route_of(mine));
      const auto found = moe.traffic(got.ticket());
      test::expect_equal(found.far_rows, crossings, "rows that cross");
      test::expect_equal(found.far_bytes, crossings * (row_bytes + slot_bytes), "their bytes");
      handed_on += found.near_rows;
      // On the first level a rank without counterpart stores to the representative of its group.
      const std::size_t first_level = found.near_bytes - found.near_rows * row_bytes;
      test::expect(first_level % slot_bytes == 0, "rows of either level");
      handed_on -= first_level / slot_bytes;
      test::expect_error(errc::invalid_argument, {"traffic was given ticket 9"},
                         [&] { static_cast<void>(moe.traffic({9, got.ticket().exchange})); });
    });
    CHECK(worst_status == 0);
    CHECK(handed_on == wanted_handed_on);
  }
}

TEST_CASE("two levels: far bytes with 2 hosts of 8 ranks, 256 experts, top-8") {
  test::pretended = {2, false};
  constexpr exchange_config many{.experts = 256, .hidden = 512, .top_k = 8, .max_tokens = 48};
  // Of all ranks, by way: one copy for each expert, for each rank, and two levels.
  std::array<std::atomic<std::uint64_t>, 3> far{};
  const int worst_status = threads::run(16, [&](auto& comm) {
    const oracle::shape shape{comm.size(), many.experts, many.hidden, many.top_k};
    const auto mine =
        oracle::make_input(shape, comm.rank().index(), many.max_tokens, oracle::routes::uniform, 1);
    std::vector<bf16> out(mine.tokens.size());
    const auto add = [&](std::size_t way, auto&& moe) {
      const std::uint64_t before = comm.bus().far_traffic().bytes;
      const auto got = moe.dispatch(mine.tokens, route_of(mine));
      moe.combine(got, out);
      far[way] += comm.bus().far_traffic().bytes - before;
    };
    add(0, two_levels{comm, many, relay::never});
    add(1,
        two_level_exchange{comm, many, relay::never, int8_per_token{}, peerbus::moe::rank_major{}});
    two_levels relayed{comm, many, relay::always};
    add(2, relayed);
    const auto& expected = relayed.chosen().estimate;
    const auto copies = expected.copies;
    test::expect(copies.by_expert / copies.by_group > 4 && copies.by_rank / copies.by_group > 3.2,
                 "what the formulas say");
  });
  CHECK(worst_status == 0);
  const auto bytes = [&](std::size_t way) { return static_cast<double>(far[way]); };
  INFO("far bytes: ", bytes(0), " by expert, ", bytes(1), " by rank, ", bytes(2), " two levels");
  CHECK(bytes(0) >= 3.5 * bytes(2));
  CHECK(bytes(1) >= 2.4 * bytes(2));
}

TEST_CASE("two levels: a rank that fails ends the waits of all others") {
  test::pretended = {2, false};
  std::atomic<int> told{0};
  for (const bool in_combine : {false, true}) {
    std::barrier all_are_well{6};
    const int worst_status = threads::run(6, [&](auto& comm) {
      two_levels moe{comm, config, relay::always};
      const test::scenario from = scenario_of(comm.size(), 4);
      const oracle::input& mine = from.inputs[comm.rank().index()];
      test::two_levels::check_round(moe, from, comm.rank());
      all_are_well.arrive_and_wait();
      const bool fails = comm.rank() == rank_id{4};
      if (fails && !in_combine) throw std::runtime_error{"as the test wants it"};
      const auto begin = std::chrono::steady_clock::now();
      test::expect_error(errc::peer_dead, {"rank 4 failed"}, [&] {
        const auto got = moe.dispatch(mine.tokens, route_of(mine));
        if (fails) throw std::runtime_error{"as the test wants it"};
        std::vector<bf16> out(mine.tokens.size());
        moe.combine(got, out);
      });
      // The default timeout is 30 s.
      test::expect(std::chrono::steady_clock::now() - begin < std::chrono::seconds{20},
                   "no timeout");
      test::expect_error(errc::poisoned, {"rank 4 failed"}, [&] { comm.barrier(); });
      ++told;
    });
    CHECK(worst_status == 1);
  }
  CHECK(told == 10);
}

}  // namespace two_levels_test

#pragma GCC diagnostic pop
