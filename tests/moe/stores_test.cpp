// SPDX-License-Identifier: MIT
// ctest: tsan timeout=120
#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/cost_table.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/core/this_machine.hpp>
#include <peerbus/moe/choices.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/control/store_trials.hpp>
#include <peerbus/moe/engine/learned_stores.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/stores.hpp>
#include <peerbus/transport/any_transport.hpp>

#include "conformance/exchange_suite.hpp"
#include "support/exchange_check.hpp"
#include "support/groups.hpp"
#include "support/on_lanes.hpp"
#include "support/ranks.hpp"

// Which stores an exchange takes: found out by trial, on a clock that the test makes.

namespace stores_test {

namespace {

using peerbus::moe::never_stream;
using peerbus::moe::store_choice;
using peerbus::moe::store_kind;
using peerbus::moe::store_reason;
using peerbus::moe::detail::batch_stores;
using peerbus::moe::detail::store_trials;

constexpr std::size_t cache = std::size_t{1} << 20U;
constexpr std::size_t small = std::size_t{1} << 12U;
constexpr std::size_t large = std::size_t{1} << 24U;

/// The microseconds of a batch with these stores.
using costs = std::function<double(store_kind)>;

/// Gives `trials` the dispatches `first` to `last`. Returns how many of them used streaming stores.
std::uint64_t dispatch(store_trials& trials, std::uint64_t first, std::uint64_t last,
                       std::size_t bytes, const costs& of) {
  std::uint64_t streamed = 0;
  for (std::uint64_t number = first; number <= last; ++number) {
    batch_stores batch = trials.begin(number, bytes);
    if (batch.stream_from == 0) ++streamed;
    if (!batch.timed) continue;
    REQUIRE(batch.stream_from == (batch.kind == store_kind::streaming ? 0 : never_stream));
    batch.us_per_token = of(batch.kind);
    trials.add(batch);
  }
  return streamed;
}

/// Costs `plain` or `streaming`, with noise of up to `part` of it.
costs noisy(double plain, double streaming, double part, std::uint64_t seed) {
  return [=, random = std::mt19937_64{seed}](store_kind kind) mutable {
    const double base = kind == store_kind::streaming ? streaming : plain;
    return base * std::uniform_real_distribution{1.0, 1.0 + part}(random);
  };
}

}  // namespace

TEST_CASE("a configured limit is kept, and nothing is tried") {
  store_trials trials{cache, store_reason::configured, 1};
  for (std::uint64_t number = 1; number < 5000; ++number) {
    const batch_stores batch = trials.begin(number, number % 2 == 0 ? small : large);
    CHECK_FALSE(batch.timed);
    CHECK(batch.stream_from == cache);
  }
  CHECK(trials.choice(small).kind == store_kind::plain);
  CHECK(trials.choice(large).kind == store_kind::streaming);
  CHECK(trials.choice(large).why == store_reason::configured);
}

TEST_CASE("the better stores are taken, whatever is assumed") {
  for (const double streaming : {50.0, 90.0, 110.0, 200.0})
    for (const std::size_t bytes : {std::size_t{1}, small, large})
      for (const std::size_t in_flight : {std::size_t{1}, std::size_t{2}, std::size_t{4}}) {
        CAPTURE(streaming);
        CAPTURE(bytes);
        CAPTURE(in_flight);
        store_trials trials{cache, store_reason::measured, in_flight};
        CHECK(trials.choice(bytes).why == store_reason::assumed);
        CHECK((trials.choice(bytes).kind == store_kind::streaming) == (bytes >= cache));
        const auto of = noisy(100, streaming, 0.02, bytes + in_flight);
        dispatch(trials, 1, 100, bytes, of);
        const store_choice found = trials.choice(bytes);
        CHECK(found.why == store_reason::measured);
        CHECK((found.kind == store_kind::streaming) == (streaming < 100));
        CHECK(found.plain_us == doctest::Approx(100).epsilon(0.03));
        CHECK(found.streaming_us == doctest::Approx(streaming).epsilon(0.03));
        // Until the next trial.
        CHECK(dispatch(trials, 101, 500, bytes, of) == (streaming < 100 ? 400 : 0));
      }
}

TEST_CASE("times of another exchange decide until both kinds are measured") {
  using peerbus::cost_table;
  constexpr std::size_t token = 1000;  // bytes
  store_trials earlier{cache, store_reason::measured, 1};
  dispatch(earlier, 1, 100, small, noisy(100, 50, 0.02, 1));
  dispatch(earlier, 101, 1100, large, noisy(50, 100, 0.02, 2));
  // The first trial finds plain stores better, the next one less, which is not lasting.
  dispatch(earlier, 1101, 2200, 2 * large, noisy(50, 100, 0, 3));
  const cost_table costs = cost_table::parse(costs_of(earlier, token).file_text());
  CHECK(costs.machine() == peerbus::this_machine());
  CHECK(costs.find("local.moe.stores.4096.plain_byte_ns").value_or(0) ==
        doctest::Approx(100).epsilon(0.03));
  CHECK_FALSE(peerbus::moe::detail::objection_to_stores(costs).has_value());

  store_trials later{cache, store_reason::measured, 1};
  start_from(later, costs, 2 * token);
  CHECK(later.sizes() == earlier.sizes());
  for (const std::size_t bytes : later.sizes()) {
    CAPTURE(bytes);
    CHECK(later.choice(bytes).why == store_reason::learned);
    CHECK(later.choice(bytes).kind == earlier.choice(bytes).kind);
    CHECK(later.choice(bytes).plain_us == doctest::Approx(2 * earlier.choice(bytes).plain_us));
    CHECK(later.choice(bytes).trials == 0);
    // The first dispatches are in no trial.
    const bool streams = earlier.choice(bytes).kind == store_kind::streaming;
    CHECK(dispatch(later, 1, 4, bytes, noisy(1, 1, 0, 1)) == (streams ? 4 : 0));
  }
  CHECK(later.choice(cache).why == store_reason::assumed);
  // What this exchange measures counts alone, in the trials that it has in any case.
  CHECK(dispatch(later, 9, 40, small, noisy(50, 100, 0, 1)) == 16);
  dispatch(later, 41, 50, small, noisy(50, 100, 0, 1));
  CHECK(later.choice(small).why == store_reason::measured);
  CHECK(later.choice(small).kind == store_kind::plain);
  CHECK(later.choice(small).trials == 1);

  // Times that hardly differ leave the rule. A configured limit needs no times.
  cost_table equal;
  equal.set("local.moe.stores.4096.plain_byte_ns", 1.01);
  equal.set("local.moe.stores.4096.streaming_byte_ns", 1);
  store_trials undecided{cache, store_reason::measured, 1};
  start_from(undecided, equal, token);
  CHECK(undecided.choice(small).kind == store_kind::plain);
  store_trials configured{cache, store_reason::configured, 1};
  start_from(configured, costs, token);
  CHECK(configured.choice(small).why == store_reason::configured);
  CHECK(configured.begin(1, small).stream_from == cache);
}

TEST_CASE("sizes are decided apart, and one that comes later is tried later") {
  store_trials trials{cache, store_reason::measured, 1};
  dispatch(trials, 1, 100, small, noisy(100, 50, 0, 1));
  CHECK(trials.choice(small).kind == store_kind::streaming);
  CHECK(trials.choice(2 * small).why == store_reason::assumed);
  dispatch(trials, 101, 1100, large, noisy(50, 100, 0, 1));
  CHECK(trials.choice(small).kind == store_kind::streaming);
  CHECK(trials.choice(large).kind == store_kind::plain);
  CHECK(trials.choice(large).why == store_reason::measured);
}

TEST_CASE("sizes that come in turns are decided over several trials") {
  for (const std::size_t sizes : {2U, 3U, 5U}) {
    CAPTURE(sizes);
    store_trials trials{cache, store_reason::measured, 1};
    const auto of = noisy(100, 50, 0, 1);
    for (std::uint64_t number = 1; number < 40'000; ++number)
      dispatch(trials, number, number, small << number % sizes, of);
    for (std::size_t i = 0; i < sizes; ++i) {
      CHECK(trials.choice(small << i).why == store_reason::measured);
      CHECK(trials.choice(small << i).kind == store_kind::streaming);
    }
  }
}

TEST_CASE("an empty batch is not timed") {
  store_trials trials{cache, store_reason::measured, 1};
  for (std::uint64_t number = 1; number < 1000; ++number)
    CHECK_FALSE(trials.begin(number, 0).timed);
  CHECK(trials.choice(0).why == store_reason::assumed);
}

TEST_CASE("nothing changes by noise, and a lasting change is followed") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    CAPTURE(seed);
    // Times of one in four batches triple, as where others use the machine, too.
    std::mt19937_64 random{seed};
    const costs of = [&](store_kind) {
      return 100.0 * (std::uniform_real_distribution{1.0, 1.05}(random)) *
             (random() % 4 == 0 ? 3 : 1);
    };
    store_trials trials{cache, store_reason::measured, 1};
    std::uint64_t changes = 0;
    store_kind kind = store_kind::plain;
    for (std::uint64_t number = 1; number < 100'000; number += 500) {
      dispatch(trials, number, number + 499, small, of);
      if (trials.choice(small).kind != kind) ++changes;
      kind = trials.choice(small).kind;
    }
    CHECK(changes <= 2);
  }
  store_trials trials{cache, store_reason::measured, 1};
  dispatch(trials, 1, 10'000, small, noisy(100, 150, 0.05, 1));
  CHECK(trials.choice(small).kind == store_kind::plain);
  dispatch(trials, 10'001, 60'000, small, noisy(150, 100, 0.05, 2));
  CHECK(trials.choice(small).kind == store_kind::streaming);
}

TEST_CASE("trials are as rare as they are said to be, and at the same numbers on all ranks") {
  store_trials one{0, store_reason::measured, 1};
  store_trials other{never_stream, store_reason::measured, 1};
  const costs plain = noisy(100, 200, 0.05, 1);
  CHECK(dispatch(one, 1, 8, small, plain) == 8);
  // One more, as the trial is decided when its last batch must have ended.
  CHECK(dispatch(one, 9, 551, small, plain) == 16 + 1);
  CHECK(dispatch(one, 552, 100'000, small, plain) <= 16 * 11);

  store_trials third{cache, store_reason::measured, 1};
  for (std::uint64_t number = 1; number < 20'000; ++number) {
    const batch_stores there = other.begin(number, large);
    const batch_stores here = third.begin(number, small);
    REQUIRE(there.timed == here.timed);
    if (here.timed) REQUIRE(there.kind == here.kind);
  }
}

TEST_CASE("batches that are never combined, or late, leave no size undecided for ever") {
  store_trials trials{cache, store_reason::measured, 4};
  for (std::uint64_t number = 1; number < 600; ++number) (void)trials.begin(number, small);
  CHECK(trials.choice(small).why == store_reason::assumed);
  std::vector<batch_stores> late;
  for (std::uint64_t number = 600; number < 3000; ++number) {
    late.push_back(trials.begin(number, small));
    if (late.size() < 4) continue;
    batch_stores first = late.front();
    late.erase(late.begin());
    if (!first.timed) continue;
    first.us_per_token = first.kind == store_kind::streaming ? 10 : 20;
    trials.add(first);
  }
  CHECK(trials.choice(small).kind == store_kind::streaming);
  CHECK(trials.choice(small).why == store_reason::measured);
}

namespace {

constexpr conformance::exchange_case full{
    .experts = 7,
    .hidden = 128,
    .top_k = 2,
    .max_tokens = 5,
    .tokens = conformance::counts::full,
    .attachments = {12},
};

/// Rounds of one exchange, before, during and after its first trial, each against the oracle.
template <class Layout, class Communicator>
void check_rounds(Communicator& comm, const Layout& layout, std::size_t in_flight,
                  std::optional<std::size_t> stream_from) {
  auto config = conformance::config_of(full);
  config.in_flight = in_flight;
  config.stream_from = stream_from;
  peerbus::moe::exchange moe{comm, config, peerbus::codec::int8_per_token{}, layout};
  CHECK(moe.stores_for(full.max_tokens).why ==
        (stream_from ? store_reason::configured : store_reason::assumed));
  const std::size_t rounds = store_trials::first_decision(in_flight);
  for (const test::scenario& round : conformance::make_scenarios(full, comm.size(), rounds))
    test::check_round(moe, round, comm.rank(), layout);
  const bool stores = peerbus::reach_of(comm.bus()) == peerbus::peer_reach::all;
  const store_choice found = moe.stores_for(full.max_tokens);
  if (stream_from || !stores) {
    CHECK(found.why == (stream_from ? store_reason::configured : store_reason::assumed));
    return;
  }
  CHECK(found.why == store_reason::measured);
  CHECK(std::min(found.plain_us, found.streaming_us) > 0);
}

/// In every layout.
template <class Group>
void check_layouts(std::size_t ranks) {
  const int status = Group::run(ranks, [](auto& comm) {
    check_rounds(comm, peerbus::moe::compact{.alignment = 4, .zero_gaps = true}, 2, std::nullopt);
    check_rounds(comm, peerbus::moe::padded{}, 1, std::nullopt);
    check_rounds(comm, peerbus::moe::rank_major{}, 1, std::nullopt);
    check_rounds(comm, peerbus::moe::slots{}, 1, std::nullopt);
    check_rounds(comm, peerbus::moe::expert_slots{}, 3, std::nullopt);
    check_rounds(comm, peerbus::moe::automatic{}, 1, std::nullopt);
    check_rounds(comm, peerbus::moe::compact{}, 1, 0);
  });
  CHECK(status == 0);
}

/// Several lanes of each rank dispatch and combine the same batch again and again. Every result has
/// the bits of the first.
void check_lanes(std::size_t ranks, std::size_t lanes) {
  using peerbus::bf16;
  const int status = test::direct_threads::run(ranks, [&](auto& comm) {
    const std::size_t tokens = 3 + comm.rank().index();
    conformance::exchange_case bare = full;
    bare.attachments = {};
    peerbus::moe::exchange moe{comm, conformance::config_of(bare),
                               peerbus::codec::int8_per_token{}};
    std::vector<bf16> rows(tokens * full.hidden);
    for (std::size_t i = 0; i < rows.size(); ++i)
      rows[i] = bf16{static_cast<float>((i * 37 + comm.rank().index()) % 61) - 30.0F};
    std::vector<std::int32_t> experts(tokens * full.top_k);
    for (std::size_t i = 0; i < experts.size(); ++i)
      experts[i] = static_cast<std::int32_t>(i % full.experts);
    const std::vector<float> weights(experts.size(), 0.5F);
    std::vector<bf16> first;
    for (std::size_t turn = 0; turn < 50; ++turn) {
      std::vector<bf16> out(rows.size());
      test::on_lanes(lanes, [&](peerbus::lane as) {
        const auto received = moe.dispatch(rows, {experts, weights}, {.as = as});
        for (const auto& expert : received.experts())
          for (std::size_t i = as.index; i < expert.count(); i += as.count) {
            std::vector<float> row(full.hidden);
            expert.decode(i, row);
            std::ranges::transform(row, expert.output(i).begin(),
                                   [](float value) { return bf16{value}; });
          }
        moe.combine(received, out, {.as = as});
      });
      if (first.empty()) first = out;
      const auto bits = [](bf16 value) { return value.bits; };
      if (!std::ranges::equal(out, first, {}, bits, bits)) return 1;
    }
    return moe.stores_for(tokens).why == store_reason::measured ? 0 : 1;
  });
  CHECK(status == 0);
}

}  // namespace

TEST_CASE("trials change no byte, in any layout") {
  for (const std::size_t ranks : {std::size_t{1}, std::size_t{3}}) {
    check_layouts<test::direct_threads>(ranks);
    check_layouts<test::staged_threads>(ranks);
  }
}

TEST_CASE("a batch has the stores of its own size") {
  const int status = test::direct_threads::run(2, [](auto& comm) {
    conformance::exchange_case sized = full;
    sized.max_tokens = 100;
    peerbus::moe::exchange moe{comm, conformance::config_of(sized),
                               peerbus::codec::int8_per_token{}};
    const auto rounds_of = [&](std::size_t tokens) {
      sized.max_tokens = tokens;
      return conformance::make_scenarios(sized, comm.size(), 1).front();
    };
    const test::scenario large_round = rounds_of(100);
    const test::scenario small_round = rounds_of(5);
    // In each lap of four one large batch is timed, which is too few, and two small ones.
    for (std::size_t i = 0; i < 44; ++i)
      test::check_round(moe, i % 4 < 2 ? large_round : small_round, comm.rank(),
                        peerbus::moe::compact{});
    CHECK(moe.stores_for(5).why == store_reason::measured);
    CHECK(moe.stores_for(100).why == store_reason::assumed);
  });
  CHECK(status == 0);
}

TEST_CASE("an exchange starts from the times that it is given, which ranks need not share") {
  const int status = test::direct_threads::run(3, [](auto& comm) {
    using peerbus::moe::size_stores;
    auto config = conformance::config_of(full);
    const auto stores_of = [](const auto& moe) {
      const std::vector<size_stores> found = moe.choices().stores;
      test::expect_equal(found.size(), std::size_t{1}, "sizes");
      return found.front();
    };
    const auto rounds = conformance::make_scenarios(full, comm.size(), 60);
    const auto check_all = [&](auto& moe) {
      for (const test::scenario& round : rounds)
        test::check_round(moe, round, comm.rank(), peerbus::moe::compact{});
    };
    const auto make = [&] {
      return peerbus::moe::exchange{comm, config, peerbus::codec::int8_per_token{}};
    };
    auto earlier = make();
    test::expect(earlier.choices().stores.empty() && earlier.learned_costs().empty(), "no times");
    check_all(earlier);
    const size_stores measured = stores_of(earlier);
    test::expect(measured.stores.why == store_reason::measured && measured.stores.trials == 1,
                 "one trial");
    peerbus::cost_table costs = earlier.learned_costs();
    config.costs = &costs;
    {
      const auto later = make();
      const size_stores learned = stores_of(later);
      test::expect(learned.stores.why == store_reason::learned, describe(learned.stores.why));
      test::expect_equal(learned.from_bytes, measured.from_bytes, "bytes");
      test::expect(learned.stores.kind == measured.stores.kind, "the same stores");
    }
    // Each rank has times of its own, and one none. What they share, they compare.
    const std::size_t rank = comm.rank().index();
    const std::string size = peerbus::concat("local.moe.stores.", measured.from_bytes);
    costs = {};
    costs.set(size + ".plain_byte_ns", rank == 0 ? 1 : 2);
    costs.set(size + ".streaming_byte_ns", rank == 0 ? 2 : 1);
    if (rank == 2) config.costs = nullptr;
    auto mixed = make();
    if (rank < 2) {
      test::expect(mixed.stores_for(full.max_tokens).why == store_reason::learned, "times");
      test::expect((stores_of(mixed).stores.kind == store_kind::streaming) == (rank == 1),
                   "stores by the rank's own times");
    }
    check_all(mixed);
    test::expect(stores_of(mixed).stores.why == store_reason::measured, "own times in the end");

    config.costs = &costs;
    const bool is_last = rank == 2;
    const auto expect_refused = [&](std::string_view says) {
      test::expect_error(peerbus::errc::invalid_argument, {says},
                         [&] { const auto refused = make(); });
    };
    if (is_last) costs.set(size + ".streaming_byte_ns", 0);
    expect_refused(peerbus::concat("exchange: costs have ", size,
                                   ".streaming_byte_ns of 0, expected more than 0"));
    if (is_last) costs = {};
    if (is_last) costs.set(size + ".plain_byte_ns", 1);
    expect_refused(peerbus::concat("exchange: costs have ", size, ".plain_byte_ns but not ", size,
                                   ".streaming_byte_ns, expected both or none"));
    if (is_last) costs.set("moe.direct.slot_row_us", 1);
    if (is_last) costs.set(size + ".streaming_byte_ns", 1);
    test::expect_error(peerbus::errc::mismatch, {"hash of costs is "},
                       [&] { const auto refused = make(); });
  });
  CHECK(status == 0);
}

TEST_CASE("trials of several lanes change no bit") { check_lanes(2, 2); }

}  // namespace stores_test
