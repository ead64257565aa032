// SPDX-License-Identifier: MIT
// ctest: serial timeout=300
#include "support/survivors.hpp"

#include <signal.h>
#include <sys/wait.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/collective/all_reduce.hpp>
#include <peerbus/collective/reduction.hpp>
#include <peerbus/collective/team.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/communicator/survivors.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "support/tally.hpp"

// Ranks are killed as by `kill -9`, and the others go on in the memory that they have.

namespace survivors_test {
namespace {

using peerbus::errc;
using peerbus::rank_id;
using peerbus::codec::int8_per_token;
using survivors::at;
using survivors::victim;
using communicator = peerbus::communicator<peerbus::any_transport>;

constexpr peerbus::communicator_options patient{.timeout = std::chrono::minutes{2}};
constexpr int killed = 128 + SIGKILL;

void die() { ::raise(SIGKILL); }

/// Runs `body(comm)` on `ranks` processes, of which all but `victims` must come to its end.
template <class Body>
void run(std::size_t ranks, std::size_t victims, Body body) {
  CAPTURE(ranks);
  const test::tally ended;
  const int status = peerbus::run_local(ranks, [&](peerbus::bootstrap& boot) {
    communicator comm{peerbus::any_transport{peerbus::unified_bus{boot}}, patient};
    body(comm);
    ended.add();
  });
  CHECK(status == (victims == 0 ? 0 : killed));
  CHECK(ended.count() == ranks - victims);
}

template <class Layout = peerbus::moe::compact>
void check(std::size_t ranks, const std::vector<victim>& victims, const Layout& layout = {}) {
  for (const victim& each : victims) CAPTURE(each.rank);
  run(ranks, victims.size(),
      [&](communicator& comm) { survivors::check<int8_per_token>(comm, victims, die, layout); });
}

}  // namespace

TEST_CASE("a rank dies anywhere in a round, and the others go on") {
  for (std::size_t where = 0; where < static_cast<std::size_t>(at::agreement); ++where) {
    CAPTURE(where);
    const at place{static_cast<std::uint8_t>(where)};
    check(2, {{0, place}});
    check(3, {{1, place}});
    check(4, {{3, place}});
    check(8, {{0, place}});
  }
}

TEST_CASE("in every layout") {
  for (const at place : {at::sent, at::published}) {
    check(5, {{0, place}}, peerbus::moe::compact{.alignment = 4, .zero_gaps = true});
    check(5, {{2, place}}, peerbus::moe::padded{});
    check(5, {{4, place}}, peerbus::moe::rank_major{});
    check(5, {{0, place}}, peerbus::moe::expert_slots{});
    check(5, {{3, place}}, peerbus::moe::slots{});
    check(3, {{1, place}}, peerbus::moe::expert_slots{});
  }
}

TEST_CASE("one rank after the other, until one is left") {
  check(4, {{2, at::sent}, {0, at::experts}, {3, at::barrier}});
}

TEST_CASE("two at once, and one while the others agree or resume") {
  check(6, {{1, at::dispatch}, {4, at::agreement}});
  check(6, {{5, at::sent}, {0, at::resume}});
  check(8, {{0, at::published}, {1, at::agreement}, {2, at::resume}, {3, at::agreement}});
}

TEST_CASE("at any moment") {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    CAPTURE(seed);
    const std::size_t ranks = 2 + seed % 4;
    run(ranks, 1, [&](communicator& comm) {
      survivors::moe::exchange exchange{comm, survivors::config, int8_per_token{}};
      std::thread killer;
      if (comm.rank().index() == seed % ranks)
        killer = std::thread{[seed] {
          std::this_thread::sleep_for(std::chrono::microseconds{seed * 977 % 9'000});
          ::raise(SIGKILL);
        }};
      const auto seed_of = [&] { return exchange.next_dispatch(); };
      const auto round = [&] {
        test::check_round(exchange,
                          survivors::scenario_of(comm.view(), exchange.placement(), seed_of()),
                          comm.rank());
      };
      survivors::insist(
          comm,
          [&] {
            while (comm.view().number() == 0) round();
            for (int i = 0; i < 5; ++i) round();
            comm.barrier();
          },
          [&] {
            comm.continue_without_the_dead();
            static_cast<void>(exchange.resume());
          });
    });
  }
}

TEST_CASE("a rank that lives is put out, also one that is stopped") {
  for (const bool is_stopped : {true, false}) {
    CAPTURE(is_stopped);
    run(4, 1, [&](communicator& comm) {
      survivors::moe::exchange exchange{comm, survivors::config, int8_per_token{}};
      comm.barrier();
      const std::array evicted{rank_id{2}};
      if (comm.rank() == evicted[0]) {
        if (is_stopped) ::raise(SIGSTOP);
        for (;;) std::this_thread::sleep_for(std::chrono::minutes{1});
      }
      const auto wait_for = [&](std::chrono::milliseconds span) {
        comm.barrier(peerbus::deadline::after(span));
      };
      if (comm.rank() == rank_id{1}) {
        test::expect_error(errc::timed_out, {"rank 2"},
                           [&] { wait_for(std::chrono::milliseconds{50}); });
        test::expect_error(errc::invalid_argument, {"rank 1 given on rank 1"},
                           [&] { comm.continue_without(std::array{rank_id{1}}); });
        test::expect_error(errc::invalid_argument, {"rank 4 given", "below 4"},
                           [&] { comm.continue_without(std::array{rank_id{4}}); });
        comm.continue_without(evicted);
      } else {
        test::expect_error(errc::peer_dead, {"rank 2 died"},
                           [&] { wait_for(std::chrono::minutes{1}); });
        comm.continue_without_the_dead();
      }
      test::expect_equal(comm.view().members().size(), 3U, "members");
      static_cast<void>(exchange.resume());
      test::check_round(exchange, survivors::scenario_of(comm.view(), exchange.placement(), 1),
                        comm.rank());
      comm.barrier();
    });
  }
}

TEST_CASE("a rank that leaves is gone too") {
  run(5, 0, [](communicator& comm) {
    survivors::moe::exchange exchange{comm, survivors::config, int8_per_token{}};
    const auto round = [&](std::uint64_t seed) {
      test::check_round(exchange, survivors::scenario_of(comm.view(), exchange.placement(), seed),
                        comm.rank());
    };
    round(1);
    if (comm.rank().index() % 2 == 1) return;
    survivors::insist(
        comm,
        [&] {
          round(2);
          test::expect_equal(comm.view().members().size(), 3U, "ranks that stay");
          comm.barrier();
        },
        [&] {
          comm.continue_without_the_dead();
          static_cast<void>(exchange.resume());
        });
  });
}

TEST_CASE("weights of lost experts are left out, or the others grow, or all refuse") {
  using moe = peerbus::moe::exchange<peerbus::any_transport, peerbus::codec::bf16>;
  using peerbus::moe::lost_experts;
  for (const auto choice :
       {lost_experts::dropped, lost_experts::renormalised, lost_experts::refused})
    run(3, 1, [&](communicator& comm) {
      moe exchange{comm, {.experts = 3, .hidden = 32, .top_k = 2, .max_tokens = 1}};
      if (comm.rank() == rank_id{2}) die();
      const std::vector<peerbus::bf16> token(32, peerbus::bf16{1.0F});
      // Expert 2 was at rank 2.
      const std::vector<std::int32_t> ids{2, comm.rank() == rank_id{0} ? 1 : 0};
      const std::vector<float> weights{0.75F, 0.25F};
      std::vector<peerbus::bf16> out(32);
      const auto round = [&] {
        const auto got = exchange.dispatch(token, {ids, weights});
        test::expect_equal(got.rows(), 1U, "rows of the other rank");
        for (const auto& expert : got.experts())
          for (std::size_t row = 0; row < expert.count(); ++row)
            for (auto& value : expert.output(row)) value = peerbus::bf16{8.0F};
        exchange.combine(got, out);
      };
      test::expect_error(errc::peer_dead, {"rank 2 died"}, [&] {
        for (;;) comm.barrier();
      });
      comm.continue_without_the_dead();
      test::expect_error(errc::view_changed, {"dispatch", "view 1 of 2 ranks", "view 0"},
                         [&] { round(); });
      test::expect_equal(exchange.resume({.lost = choice}).combined, 0U,
                         "batches that are complete");
      test::expect_error(errc::invalid_argument, {"in view 1 already"},
                         [&] { static_cast<void>(exchange.resume()); });
      if (choice == lost_experts::refused)
        return test::expect_error(errc::invalid_argument, {"expert id 2", "whose rank is gone"},
                                  [&] { round(); });
      round();
      const float wanted = choice == lost_experts::dropped ? 2.0F : 8.0F;
      for (const auto value : out)
        test::expect_equal(static_cast<float>(value), wanted, "sum of the slots that are left");
    });
}

TEST_CASE("what was made before says so, and the survivors make it anew") {
  run(4, 2, [](communicator& comm) {
    namespace coll = peerbus::collective;
    coll::team on{comm};
    std::vector<float> data(100, 1.0F);
    coll::all_reduce(on, data, coll::sum{});
    if (comm.rank() == rank_id{0}) die();
    test::expect_error(errc::peer_dead, {"rank 0 died"}, [&] {
      for (;;) coll::all_reduce(on, data, coll::sum{});
    });
    test::expect_error(errc::poisoned, {"rank 0 died"}, [&] { comm.barrier(); });
    const auto& view = comm.continue_without_the_dead();
    test::expect_equal(view.number(), 1U, "number of the view");
    test::expect(!view.contains(rank_id{0}) && view.members().size() == 3, "who is in");
    test::expect_equal(comm.continue_without_the_dead().number(), 1U, "view, as nobody is gone");
    comm.barrier();
    test::expect_error(errc::view_changed, {"all_reduce", "view 1"},
                       [&] { coll::all_reduce(on, data, coll::sum{}); });
    // New windows, of which nobody shares the part of the rank that is gone.
    auto window = comm.make_window(64, 1);
    for (const rank_id peer : comm.ranks())
      test::expect_ok(window.put(peer, 8 * comm.rank().index(), std::array{comm.rank().index()}),
                      "put");
    comm.barrier();
    for (const rank_id peer : view.members())
      test::expect_equal(window.local<std::size_t>()[peer.index()], peer.index(),
                         "what a peer put");
    test::expect_error(errc::mismatch, {"make_window", "bytes", "on rank 1", "on rank 2"}, [&] {
      static_cast<void>(comm.make_window(comm.rank() == rank_id{2} ? 64 : 128, 1));
    });
    survivors::moe::exchange later{comm, survivors::config, int8_per_token{}};
    for (std::uint64_t seed = 1; seed < 4; ++seed)
      test::check_round(later, survivors::scenario_of(view, later.placement(), seed), comm.rank());
    // The same once more, among the survivors.
    const auto boot = peerbus::survivors(comm);
    test::expect_equal(boot->size(), 3U, "survivors");
    communicator smaller{peerbus::any_transport{peerbus::unified_bus{*boot}}, patient};
    coll::team again{smaller};
    std::vector<float> ones(100, 1.0F);
    coll::all_reduce(again, ones, coll::sum{});
    test::expect_equal(ones[99], 3.0F, "sum of the survivors");
    survivors::moe::exchange exchange{smaller, survivors::config, int8_per_token{}};
    if (smaller.rank() == rank_id{0}) die();
    survivors::insist(
        smaller,
        [&] {
          test::check_round(exchange,
                            survivors::scenario_of(smaller.view(), exchange.placement(), 5),
                            smaller.rank());
          smaller.barrier();
        },
        [&] {
          smaller.continue_without_the_dead();
          static_cast<void>(exchange.resume());
        });
    test::expect_equal(smaller.view().members().size(), 2U, "survivors of both");
    test::expect_equal(comm.continue_without_the_dead().number(), 2U, "view of the larger group");
    comm.barrier();
  });
}

TEST_CASE("a batch that all have received is combined without the outputs of the dead") {
  const auto check_layout = [](const auto& layout) {
    run(5, 1, [&](communicator& comm) {
      survivors::moe::exchange exchange{comm, survivors::config, int8_per_token{}, layout};
      const auto whole = survivors::scenario_of(comm.view(), exchange.placement(), 4);
      const oracle::input& mine = whole.inputs[comm.rank().index()];
      std::vector<peerbus::bf16> out(mine.tokens.size());
      const auto got = test::dispatch(exchange, whole, comm.rank());
      const auto next = test::dispatch(exchange, whole, comm.rank());
      test::run_experts(got);
      test::run_experts(next);
      comm.barrier();
      if (comm.rank() == rank_id{0}) die();
      test::expect_error(errc::peer_dead, {"rank 0 died"}, [&] { exchange.combine(got, out); });
      const auto& view = comm.continue_without_the_dead();
      const auto complete = exchange.resume();
      test::expect(complete.received == 2 && complete.combined == 0, "both batches to combine");
      const auto left = survivors::scenario_of(view, exchange.placement(), 4);
      using layout_type = std::remove_cvref_t<decltype(layout)>;
      const auto expected = test::expected_of<int8_per_token, layout_type>(
          left.shape, left.inputs[comm.rank().index()]);
      test::expect(exchange.awaits_combine(got.ticket()), "the first to await its combine");
      for (const auto* rows : {&got, &next}) {
        exchange.combine(*rows, out);
        static_cast<void>(test::check_combined(out, expected, survivors::config.hidden, 0));
      }
      test::expect_error(errc::invalid_argument, {"combined already"},
                         [&] { exchange.combine(got, out); });
      test::check_round(exchange, left, comm.rank(), layout);
    });
  };
  check_layout(peerbus::moe::compact{});
  check_layout(peerbus::moe::rank_major{});
  check_layout(peerbus::moe::expert_slots{});
}

TEST_CASE("another rank dies before what is left is combined") {
  run(5, 2, [](communicator& comm) {
    survivors::moe::exchange exchange{comm, survivors::config, int8_per_token{}};
    const auto whole = survivors::scenario_of(comm.view(), exchange.placement(), 4);
    std::vector<peerbus::bf16> out(whole.inputs[comm.rank().index()].tokens.size());
    const auto got = test::dispatch(exchange, whole, comm.rank());
    test::run_experts(got);
    comm.barrier();
    for (const std::size_t victim : {1U, 3U}) {
      if (comm.rank().index() == victim) die();
      test::expect_error(errc::peer_dead, {}, [&] { exchange.combine(got, out); });
      comm.continue_without_the_dead();
      const auto complete = exchange.resume();
      test::expect(
          complete.received == 1 && complete.combined == 0 && exchange.awaits_combine(got.ticket()),
          "the batch to combine");
    }
    exchange.combine(got, out);
    const auto left = survivors::scenario_of(comm.view(), exchange.placement(), 4);
    const auto expected = test::expected_of<int8_per_token, peerbus::moe::compact>(
        left.shape, left.inputs[comm.rank().index()]);
    static_cast<void>(test::check_combined(out, expected, survivors::config.hidden, 0));
    test::check_round(exchange, left, comm.rank());
  });
}

TEST_CASE("another communicator of the ranks says that it has to go on too") {
  run(3, 1, [](communicator& comm) {
    communicator other{peerbus::any_transport{peerbus::unified_bus{comm.bus().boot()}}, patient};
    if (comm.rank() == rank_id{1}) die();
    test::expect_error(errc::peer_dead, {"rank 1 died"}, [&] { comm.barrier(); });
    comm.continue_without_the_dead();
    test::expect_error(errc::view_changed, {"barrier", "another communicator"},
                       [&] { other.barrier(); });
    other.continue_without_the_dead();
    other.barrier();
    communicator later{peerbus::any_transport{peerbus::unified_bus{comm.bus().boot()}}, patient};
    test::expect_equal(later.view().members().size(), 2U, "members");
    later.barrier();
  });
}

TEST_CASE("ranks that went on are not killed when the patience with the others ends") {
  const test::tally ended;
  const int status = peerbus::run_local(
      3,
      [&](peerbus::bootstrap& boot) {
        communicator comm{peerbus::any_transport{peerbus::unified_bus{boot}}, patient};
        for (std::size_t victim = 0; victim < 2; ++victim) {
          if (comm.rank().index() == victim) die();
          survivors::insist(
              comm,
              [&] {
                while (comm.view().number() == victim) comm.barrier();
              },
              [&] { comm.continue_without_the_dead(); });
          std::this_thread::sleep_for(std::chrono::milliseconds{1'300});
        }
        ended.add();
      },
      {.grace = std::chrono::seconds{1}});
  CHECK(status == killed);
  CHECK(ended.count() == 1);
}

TEST_CASE("a rank that lives and does not come is named") {
  const test::tally ended;
  const int status = peerbus::run_local(3, [&](peerbus::bootstrap& boot) {
    communicator comm{peerbus::any_transport{peerbus::unified_bus{boot}}, patient};
    if (comm.rank() == rank_id{2}) die();
    if (comm.rank() == rank_id{1}) {  // It does something else meanwhile.
      while (ended.count() == 0) std::this_thread::sleep_for(std::chrono::milliseconds{1});
      return;
    }
    test::expect_error(errc::peer_dead, {"rank 2 died"}, [&] { comm.barrier(); });
    test::expect_error(
        errc::timed_out,
        {"going on without rank 2", "rank 1 runs", "has not called", "; last heard "}, [&] {
          comm.continue_without_the_dead(peerbus::deadline::after(std::chrono::milliseconds{100}));
        });
    ended.add();
  });
  CHECK(status == killed);
  CHECK(ended.count() == 1);
}

TEST_CASE("64 ranks lose 9, on few cores") {
  run(64, 9, [](communicator& comm) {
    survivors::moe::exchange exchange{comm, survivors::config, int8_per_token{}};
    if (comm.rank().index() % 7 == 3) die();
    survivors::insist(
        comm,
        [&] {
          const auto view = comm.view();
          test::check_round(exchange, survivors::scenario_of(view, exchange.placement(), 5),
                            comm.rank());
          comm.barrier();
        },
        [&] {
          comm.continue_without_the_dead();
          static_cast<void>(exchange.resume());
        });
    test::expect_equal(comm.view().members().size(), 55U, "members");
  });
}

}  // namespace survivors_test
