// SPDX-License-Identifier: MIT
// ctest: tsan timeout=300
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/cost_table.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/protocol.hpp>
#include <peerbus/moe/relay.hpp>
#include <peerbus/transport/loopback.hpp>

#include "../../benchmarks/moe_costs/fit.hpp"
#include "moe/refusals.hpp"
#include "support/exchange_check.hpp"
#include "support/groups.hpp"
#include "support/indirect.hpp"
#include "support/ranks.hpp"

namespace automatic_test {

// How a protocol is chosen, and which choices are refused. That either protocol brings the right
// rows is tested with the other layouts (conformance/layout_suite.hpp).

namespace {

using peerbus::cost_table;
using peerbus::errc;
using peerbus::codec::int8_per_token;
using peerbus::moe::automatic;
using peerbus::moe::automatic_by_rank;
using peerbus::moe::dispatch_protocol;
using peerbus::moe::exchange_config;

#define PEERBUS_TEST_GROUPS test::direct_threads, test::staged_threads

template <class Transport>
std::string cost_of(peerbus::communicator<Transport>& comm, std::string_view name) {
  const auto path = peerbus::moe::path_name_of(peerbus::reach_of(comm.bus()));
  return "moe." + std::string{path} + "." + std::string{name};
}

/// The protocol that an exchange of `config` has.
template <class Layout, class Communicator>
dispatch_protocol protocol_of(Communicator& comm, const exchange_config& config,
                              const Layout& layout) {
  peerbus::moe::exchange moe{comm, config, int8_per_token{}, layout};
  test::expect(moe.config().costs == nullptr, "no pointer to the caller's costs");
  // Slots are the only layouts from which a rank sends counts for one receiver.
  const bool has_slots = moe.map().outbox_bytes != 0;
  test::expect(has_slots == (moe.config().protocol == dispatch_protocol::one_phase),
               "the memory to be that of the protocol");
  test::expect_equal(
      decltype(moe)::map_for(config, comm.size(), layout, peerbus::reach_of(comm.bus())).total,
      moe.map().total, "bytes that map_for plans");
  return moe.config().protocol;
}

}  // namespace

TEST_CASE("automatic: the estimate is the documented formula") {
  cost_table costs;
  costs.set("moe.direct.counts_round_us", 3);
  costs.set("moe.direct.counts_rank_us", 0.5);
  costs.set("moe.direct.slot_row_us", 0.25);
  costs.set("moe.direct.slot_kib_us", 0.125);
  costs.set("moe.staged.counts_round_us", 1000);
  const auto of_direct = peerbus::moe::estimate_protocols(costs, {"direct", 5, 16, 2});
  CHECK(of_direct.counts_us == 3 + 0.5 * 4);
  CHECK(of_direct.slots_us == 16 * (0.25 + 0.125 * 2));
  CHECK(of_direct.cheaper() == dispatch_protocol::counts_first);
  const auto of_staged = peerbus::moe::estimate_protocols(costs, {"staged", 5, 16, 2});
  CHECK(of_staged.counts_us == 1000 + 0.5 * 4);
  CHECK(of_staged.cheaper() == dispatch_protocol::one_phase);
  // What takes equally long has its rows together.
  CHECK(peerbus::moe::protocol_estimate{1, 1}.cheaper() == dispatch_protocol::counts_first);
}

TEST_CASE("automatic: assumed costs follow the measurements of docs/performance.md") {
  const auto choice = [](std::string_view path, std::size_t ranks, double rows) {
    return peerbus::moe::estimate_protocols({}, {path, ranks, rows, 7}).cheaper();
  };
  CHECK(choice("direct", 2, 1 * 8) == dispatch_protocol::one_phase);
  CHECK(choice("direct", 2, 4 * 8) == dispatch_protocol::one_phase);
  CHECK(choice("direct", 2, 8 * 8) == dispatch_protocol::counts_first);
  CHECK(choice("direct", 2, 16 * 8) == dispatch_protocol::counts_first);
  CHECK(choice("direct", 2, 128 * 8) == dispatch_protocol::counts_first);
  CHECK(choice("direct", 64, 8 * 8) == dispatch_protocol::one_phase);
  CHECK(choice("staged", 8, 1 * 8) == dispatch_protocol::one_phase);
  CHECK(choice("staged", 8, 8 * 8) == dispatch_protocol::counts_first);
  CHECK(choice("mixed", 8, 4096 * 8) == dispatch_protocol::counts_first);
}

TEST_CASE("automatic: the memory is known at compile time") {
  using planned =
      peerbus::moe::exchange<test::indirect<peerbus::loopback>, int8_per_token, automatic>;
  constexpr exchange_config few{.experts = 64, .hidden = 4096, .top_k = 8, .max_tokens = 2};
  constexpr exchange_config many{.experts = 64, .hidden = 4096, .top_k = 8, .max_tokens = 256};
  static_assert(planned::map_for(few, 2).outbox_bytes != 0);
  static_assert(planned::map_for(many, 2).outbox_bytes == 0);
}

TEST_CASE_TEMPLATE("automatic: the choice follows the table, and can be forced", Group,
                   PEERBUS_TEST_GROUPS) {
  for (const std::size_t n : {1U, 3U}) {
    CAPTURE(n);
    const int worst_status = Group::run(n, [](auto& comm) {
      cost_table dear_rows, dear_counts, others;
      dear_rows.set(cost_of(comm, "slot_row_us"), 1e9);
      dear_counts.set(cost_of(comm, "counts_round_us"), 1e9);
      others.set("moe.elsewhere.counts_round_us", 1e9);
      const auto expect_choice = [&](const cost_table* costs, dispatch_protocol given,
                                     dispatch_protocol expected, const auto& layout) {
        exchange_config config = refusals::config;
        config.costs = costs;
        config.protocol = given;
        test::expect(protocol_of(comm, config, layout) == expected, "protocol ",
                     describe(expected));
      };
      const auto check = [&](const auto& layout) {
        constexpr auto automatic = dispatch_protocol::automatic;
        constexpr auto counts_first = dispatch_protocol::counts_first;
        constexpr auto one_phase = dispatch_protocol::one_phase;
        expect_choice(nullptr, automatic, one_phase, layout);  // Few rows.
        expect_choice(&others, automatic, one_phase, layout);
        expect_choice(&dear_rows, automatic, counts_first, layout);
        expect_choice(&dear_counts, automatic, one_phase, layout);
        expect_choice(&dear_rows, one_phase, one_phase, layout);
        expect_choice(&dear_counts, counts_first, counts_first, layout);
      };
      check(automatic{});
      check(automatic_by_rank{});
      exchange_config large = refusals::config;
      large.max_tokens = 100'000;
      test::expect(protocol_of(comm, large, automatic{}) == dispatch_protocol::counts_first,
                   "many rows to be counted first");
      // Layouts that have one protocol say so.
      test::expect(protocol_of(comm, refusals::config, peerbus::moe::compact{}) ==
                       dispatch_protocol::counts_first,
                   "compact to count first");
      test::expect(protocol_of(comm, refusals::config, peerbus::moe::slots{}) ==
                       dispatch_protocol::one_phase,
                   "slots to have one phase");
    });
    CHECK(worst_status == 0);
  }
}

TEST_CASE_TEMPLATE("automatic: an exchange whose costs are all 0", Group, PEERBUS_TEST_GROUPS) {
  const int worst_status = Group::run(3, [](auto& comm) {
    cost_table none;
    for (const char* const name :
         {"counts_round_us", "counts_rank_us", "slot_row_us", "slot_kib_us"})
      none.set(cost_of(comm, name), 0);
    for (const char* const name : {"far_byte_ns", "near_byte_ns", "hop_us"})
      none.set("moe.relay." + std::string{name}, 0);
    // Its name is no part of what ranks compare.
    none.set_machine("machine of rank " + std::to_string(comm.rank().index()));
    exchange_config config = refusals::config;
    config.costs = &none;
    config.relay = peerbus::moe::relay::automatic;
    peerbus::moe::exchange moe{comm, config, int8_per_token{}, automatic{}};
    test::expect(moe.config().protocol == dispatch_protocol::counts_first,
                 "the protocol of what takes equally long");
    test::expect(!moe.relay().relays, "one level");
    for (const std::uint64_t seed : {3U, 4U})
      refusals::check_works(moe, comm.size(), comm.rank(), seed);
  });
  CHECK(worst_status == 0);
  const peerbus::moe::relay_size large{.experts = 64,
                                       .top_k = 8,
                                       .ranks = 16,
                                       .groups = 4,
                                       .max_tokens = 4096,
                                       .row_bytes = 7168,
                                       .output_bytes = 14336};
  CHECK_FALSE(estimate_relay(large, {0, 0, 0}).pays());
}

TEST_CASE_TEMPLATE("automatic: a bad dispatch is refused on all ranks in either protocol", Group,
                   PEERBUS_TEST_GROUPS) {
  const int worst_status = Group::run(3, [](auto& comm) {
    for (const auto forced : {dispatch_protocol::counts_first, dispatch_protocol::one_phase}) {
      exchange_config config = refusals::config;
      config.protocol = forced;
      config.note_bytes = 8;
      peerbus::moe::exchange moe{comm, config, int8_per_token{}, automatic{}};
      const refusals::arguments good;
      const auto dispatch = [&](bool bad) {
        return moe.dispatch(good.token_span(), good.route(), {.refuse = bad});
      };
      (void)dispatch(false);  // Never combined.
      const bool bad = comm.rank().index() == 1;
      for (int i = 0; i < 2; ++i)
        test::expect_error(bad ? errc::invalid_argument : errc::refused, {"dispatch"},
                           [&] { (void)dispatch(bad); });
      const std::vector<std::byte> note(8, std::byte{7});
      const auto rows = moe.dispatch(good.token_span(), good.route(), {.note = note});
      test::expect_equal(moe.note(rows.ticket(), peerbus::rank_id{2}).size(), std::size_t{8},
                         "bytes of a note");
      test::run_experts(rows);
      std::vector<peerbus::bf16> out(good.tokens.size());
      moe.combine(rows, out);
      for (const std::uint64_t seed : {3U, 4U})
        refusals::check_works(moe, comm.size(), comm.rank(), seed);
    }
  });
  CHECK(worst_status == 0);
}

TEST_CASE("automatic: ranks that would choose differently are named") {
  const int worst_status = test::direct_threads::run(3, [](auto& comm) {
    const bool is_last = comm.rank().index() == 2;
    const auto expect_mismatch = [&](std::string_view says, const exchange_config& config) {
      test::expect_error(errc::mismatch, {"exchange", says},
                         [&] { (void)protocol_of(comm, config, automatic{}); });
    };
    cost_table costs;
    costs.set("moe.direct.slot_row_us", is_last ? 1 : 2);
    exchange_config config = refusals::config;
    config.costs = &costs;
    expect_mismatch("hash of costs is ", config);
    config.costs = is_last ? &costs : nullptr;
    expect_mismatch("hash of costs is 0 on rank 0 but ", config);
    config.costs = nullptr;
    config.protocol = is_last ? dispatch_protocol::one_phase : dispatch_protocol::counts_first;
    expect_mismatch("protocol is counts_first on rank 0 but one_phase on rank 2", config);
    config.protocol = is_last ? dispatch_protocol::one_phase : dispatch_protocol::automatic;
    expect_mismatch("protocol is automatic on rank 0 but one_phase on rank 2", config);
    config.protocol = dispatch_protocol::automatic;
    (void)protocol_of(comm, config, automatic{});
  });
  CHECK(worst_status == 0);
}

TEST_CASE("automatic: a protocol that the layout cannot have is refused on all ranks") {
  const int worst_status = test::direct_threads::run(2, [](auto& comm) {
    const auto expect_refused = [&](std::string_view says, dispatch_protocol given,
                                    const auto& layout) {
      exchange_config config = refusals::config;
      // On all ranks, then on the last one only.
      for (const std::size_t first : {std::size_t{0}, comm.size() - 1}) {
        config.protocol = comm.rank().index() >= first ? given : dispatch_protocol::automatic;
        test::expect_error(errc::invalid_argument, {says},
                           [&] { (void)protocol_of(comm, config, layout); });
      }
    };
    constexpr auto one_phase = dispatch_protocol::one_phase;
    expect_refused(
        "exchange: protocol is one_phase, but layout compact has no slots, expected "
        "automatic or counts_first, or an automatic layout",
        one_phase, peerbus::moe::compact{});
    expect_refused("protocol is one_phase, but layout padded has no slots", one_phase,
                   peerbus::moe::padded{});
    expect_refused("protocol is one_phase, but layout rank_major has no slots", one_phase,
                   peerbus::moe::rank_major{});
    expect_refused(
        "exchange: protocol is counts_first, but layout expert_slots has slots, "
        "expected automatic or one_phase, or an automatic layout",
        dispatch_protocol::counts_first, peerbus::moe::expert_slots{});
    expect_refused(
        "protocol is 7, expected dispatch_protocol::automatic, counts_first or one_phase",
        static_cast<dispatch_protocol>(7), automatic{});
    (void)protocol_of(comm, refusals::config, automatic{});
  });
  CHECK(worst_status == 0);
}

namespace {

/// The points that `costs` explain exactly.
std::vector<moe_costs::point> points_of(const cost_table& costs,
                                        const std::vector<std::size_t>& ranks,
                                        const std::vector<double>& row_kib) {
  std::vector<moe_costs::point> points;
  for (const std::size_t n : ranks)
    for (const double kib : row_kib)
      for (const double rows : {8.0, 64.0, 512.0}) {
        const auto estimate = peerbus::moe::estimate_protocols(costs, {"staged", n, rows, kib});
        const double one_phase_us = 10 + rows * kib / 4;
        points.push_back(
            {n, rows, kib, one_phase_us + estimate.counts_us - estimate.slots_us, one_phase_us});
      }
  return points;
}

void check_costs(const cost_table& found, const cost_table& expected) {
  for (const std::string_view name :
       {"counts_round_us", "counts_rank_us", "slot_row_us", "slot_kib_us"}) {
    CAPTURE(name);
    const auto value = found.find("moe.staged." + std::string{name});
    const auto wanted = expected.find("moe.staged." + std::string{name});
    REQUIRE(value.has_value() == wanted.has_value());
    if (wanted) CHECK(*value == doctest::Approx(*wanted).epsilon(1e-6));
  }
}

}  // namespace

TEST_CASE("automatic: the costs that moe_costs finds are those that explain the times") {
  const cost_table exact = cost_table::parse(
      "peerbus costs 1\nmoe.staged.counts_rank_us 0.25\nmoe.staged.counts_round_us 3\n"
      "moe.staged.slot_kib_us 0.004\nmoe.staged.slot_row_us 0.02\n");
  check_costs(moe_costs::fit(points_of(exact, {2, 4, 16}, {1, 7}), "staged"), exact);
  // From groups of one size, and rows of one size, only two are to be found. The others are taken
  // as assumed, 0.5 and 0.
  const cost_table two = cost_table::parse(
      "peerbus costs 1\nmoe.staged.counts_round_us 2.5\nmoe.staged.slot_row_us 0.048\n");
  check_costs(moe_costs::fit(points_of(exact, {3}, {7}), "staged"), two);
  // No cost is negative, however the times are.
  auto odd = points_of(exact, {2, 4}, {1, 7});
  for (moe_costs::point& at : odd) at.one_phase_us = at.counts_first_us + 1 - 0.01 * at.rows;
  const cost_table none = moe_costs::fit(odd, "staged");
  CHECK(none.find("moe.staged.slot_row_us") == 0.0);
  CHECK(none.find("moe.staged.slot_kib_us") == 0.0);
}

#undef PEERBUS_TEST_GROUPS

}  // namespace automatic_test
