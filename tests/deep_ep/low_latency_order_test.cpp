// SPDX-License-Identifier: MIT
// ctest: tsan timeout=300
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/compat/deep_ep.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>
#include <peerbus/transport/any_transport.hpp>

#include "deep_ep/low_latency_suite.hpp"
#include "support/groups.hpp"
#include "support/ranks.hpp"

namespace low_latency_order_test {

// Hooks, events and handles: what may come when. Whatever is refused, the buffer goes on as if it
// had not been asked.

namespace {

using namespace low_latency_suite;
using group = test::direct_threads;
using buffer_type = deep_ep::buffer<peerbus::any_transport>;
using flight_type = flight<peerbus::any_transport>;
constexpr auto invalid = peerbus::errc::invalid_argument;

constexpr manner hooks{.dispatch = ending::hook, .combine = ending::hook};
constexpr manner events{.dispatch = ending::event, .combine = ending::event};

batch small_batch(std::size_t ranks, std::size_t max_tokens = 4) {
  world of{.ranks = ranks, .experts = 2 * ranks, .hidden = 128, .top_k = 2};
  of.max_tokens = max_tokens;
  of.rows = format::fp8;
  return make_batch(of, 5);
}

/// Of a flight whose rows are in.
void go_home(flight_type& one) {
  one.run_experts();
  one.combine();
  one.finish();
}

}  // namespace

TEST_CASE("a hook is called once") {
  const batch from = small_batch(2);
  with_buffers<group>(2, {}, [&](buffer_type& buffer, auto& comm) {
    flight_type one{buffer, from, comm.rank().index(), hooks};
    one.dispatch();
    one.receive();
    test::expect_error(invalid, {"hook of low_latency_dispatch 1", "once"},
                       [&] { one.got().hook(); });
    one.run_experts();
    one.combine();
    one.finish();
    test::expect_error(invalid, {"hook of low_latency_combine 1", "once"},
                       [&] { one.back().hook(); });
    test::expect_error(invalid, {"hook of low_latency_dispatch 1"}, [&] { one.got().hook(); });
    one.check_sums();
    flight_type{buffer, from, comm.rank().index(), hooks}.fly();
  });
}

TEST_CASE("a call without return_recv_hook gives no hook") {
  const batch from = small_batch(2);
  with_buffers<group>(2, {}, [&](buffer_type& buffer, auto& comm) {
    for (const ending how : {ending::at_once, ending::event}) {
      flight_type one{buffer, from, comm.rank().index(), {.dispatch = how, .combine = how}};
      one.fly();
      test::expect(!one.got().hook && !one.back().hook, "no hooks");
      test::expect_error(invalid, {"hook", "return_recv_hook"}, [&] { one.got().hook(); });
    }
  });
}

TEST_CASE("an event may be waited for again, and after its batch is gone") {
  const batch from = small_batch(2);
  with_buffers<group>(2, {}, [&](buffer_type& buffer, auto& comm) {
    flight_type one{buffer, from, comm.rank().index(), events};
    one.fly();
    one.check_sums();
    for (std::size_t i = 0; i < 3; ++i) {
      one.got().event.current_stream_wait();
      one.back().event.current_stream_wait();
      flight_type{buffer, from, comm.rank().index(), events}.fly();
    }
  });
}

TEST_CASE("a hook that was never called: its memory is not used again") {
  const batch from = small_batch(2);
  with_buffers<group>(2, {.in_flight = 2}, [&](buffer_type& buffer, auto& comm) {
    const std::size_t rank = comm.rank().index();
    flight_type one{buffer, from, rank, hooks};
    flight_type two{buffer, from, rank, hooks};
    flight_type three{buffer, from, rank, hooks};
    one.dispatch();
    two.dispatch();
    test::expect_error(
        invalid,
        {"low_latency_dispatch 3", "low_latency_dispatch 1", "never called", "in_flight 2"},
        [&] { three.dispatch(); });
    two.receive();
    one.receive();
    one.run_experts();
    one.combine();
    test::expect_error(invalid, {"low_latency_dispatch 3", "low_latency_combine 1", "never called"},
                       [&] { three.dispatch(); });
    one.finish();
    three.dispatch();
    go_home(two);
    three.receive();
    go_home(three);
  });
}

TEST_CASE("a hook that one rank alone has never called: refused on all ranks at once") {
  const batch from = small_batch(3);
  with_buffers<group>(3, {.in_flight = 2}, [&](buffer_type& buffer, auto& comm) {
    const std::size_t rank = comm.rank().index();
    for (const bool in_combine : {false, true}) {
      flight_type one{buffer, from, rank, hooks};
      flight_type two{buffer, from, rank, hooks};
      flight_type three{buffer, from, rank, hooks};
      const bool forgets = rank == 1;
      one.dispatch();
      two.dispatch();
      two.receive();
      if (in_combine || !forgets) one.receive();
      if (in_combine) {
        one.run_experts();
        one.combine();
        if (!forgets) one.finish();
      }
      test::expect_error(forgets ? invalid : peerbus::errc::refused, {"never called"}, [&] {
        three.dispatch();
        three.receive();
      });
      go_home(two);
      flight_type{buffer, from, rank, hooks}.fly();
    }
  });
}

TEST_CASE("hooks in another order than their calls, alike on all ranks") {
  const batch from = small_batch(3);
  with_buffers<group>(3, {.in_flight = 3}, [&](buffer_type& buffer, auto& comm) {
    std::deque<flight_type> all;
    for (std::size_t i = 0; i < 3; ++i) {
      all.emplace_back(buffer, from, comm.rank().index(), hooks);
      all.back().dispatch();
    }
    for (const std::size_t i : {2U, 0U, 1U}) {
      all[i].receive();
      all[i].run_experts();
      all[i].combine();
    }
    for (const std::size_t i : {1U, 2U, 0U}) all[i].finish();
  });
}

TEST_CASE("calls of other bounds use the memory of the largest") {
  with_buffers<group>(3, {.zero_copy = true}, [&](buffer_type& buffer, auto& comm) {
    const std::size_t rank = comm.rank().index();
    std::set<const void*> places;
    const auto fly = [&](std::size_t most, std::uint64_t seed) {
      const batch from = small_batch(3, most);
      flight_type one{buffer, from, rank, manner_of(seed, true)};
      one.fly();
      places.insert(one.got().recv_x.data());
    };
    fly(9, 1);
    fly(9, 2);
    const auto first = places;
    for (std::size_t most = 1; most <= 9; ++most) fly(most, most);
    for (std::size_t most = 9; most > 0; --most) fly(most, most + 3);
    test::expect(places == first, "the memory of the first two calls");

    // Bounds beyond it, one by one: memory that doubles.
    for (std::size_t most = 10; most <= 40; ++most) fly(most, most);
    test::expect(places.size() <= first.size() + 2 * 3, "memory of 18, 36 and 72 tokens");

    // A handle keeps the bound of its dispatch while others come.
    const batch small = small_batch(3, 2);
    const batch large = small_batch(3, 8);
    flight_type kept{buffer, small, rank, hooks};
    flight_type other{buffer, large, rank, hooks};
    kept.dispatch();
    other.dispatch();
    other.receive();
    kept.receive();
    go_home(kept);
    go_home(other);

    // A rank alone: all are told, although it would fit.
    const bool differs = rank == 2;
    flight_type one{buffer, small, rank, {}};
    auto args = one.dispatch_args();
    if (differs) args.num_max_dispatch_tokens_per_rank = 3;
    test::expect_error(peerbus::errc::mismatch,
                       {"num_max_dispatch_tokens_per_rank is 2 on rank 0 but 3 on rank 2"},
                       [&] { static_cast<void>(buffer.low_latency_dispatch(args)); });
    fly(2, 1);
    if (differs) args.num_max_dispatch_tokens_per_rank = 50;
    test::expect_error(peerbus::errc::mismatch,
                       {"num_max_dispatch_tokens_per_rank is 2 on rank 0 but 50 on rank 2"},
                       [&] { static_cast<void>(buffer.low_latency_dispatch(args)); });
    fly(2, 2);
    // More tokens than the bound of the call, though there is room for them.
    const std::vector<bf16> tokens(3 * 128);
    const std::vector<std::int64_t> ids(3 * 2, -1);
    args.num_max_dispatch_tokens_per_rank = 2;
    if (differs) {
      args.x = deep_ep::view(tokens, {3, 128});
      args.topk_idx = deep_ep::view(ids, {3, 2});
      args.cumulative_local_expert_recv_stats = {};
    }
    test::expect_error(differs ? invalid : peerbus::errc::refused,
                       {"x has 3 tokens, expected at most num_max_dispatch_tokens_per_rank, 2"},
                       [&] { static_cast<void>(buffer.low_latency_dispatch(args)); });
    fly(2, 3);
  });
}

TEST_CASE("a handle before its hook, after its combine, and of a dispatch that is replaced") {
  const batch from = small_batch(2);
  with_buffers<group>(2, {.in_flight = 2, .zero_copy = true}, [&](buffer_type& buffer, auto& comm) {
    const std::size_t rank = comm.rank().index();
    flight_type one{buffer, from, rank, hooks};
    one.dispatch();
    const auto combine_one = [&] {
      static_cast<void>(buffer.low_latency_combine(one.combine_args()));
    };
    const auto ask_for_memory = [&] {
      static_cast<void>(buffer.get_next_low_latency_combine_buffer(one.got().handle));
    };
    test::expect_error(
        invalid,
        {"low_latency_combine: handle", "low_latency_dispatch 1", "hook or event", "not called"},
        combine_one);
    test::expect_error(invalid,
                       {"get_next_low_latency_combine_buffer: handle", "low_latency_dispatch 1"},
                       ask_for_memory);
    one.receive();
    one.run_experts();
    one.combine();
    test::expect_error(invalid, {"handle is of low_latency_dispatch 1", "hook or event", "combine"},
                       combine_one);
    one.finish();
    for (std::size_t i = 0; i < 2; ++i) flight_type{buffer, from, rank, {}}.fly();
    test::expect_error(invalid, {"handle is of low_latency_dispatch 1", "3 has replaced"},
                       combine_one);
    test::expect_error(invalid, {"handle is of low_latency_dispatch 1", "3 has replaced"},
                       ask_for_memory);
    test::expect_error(invalid, {"hook of low_latency_dispatch 1"}, [&] { one.got().hook(); });
    test::expect_error(invalid, {"hook of low_latency_combine 1"}, [&] { one.back().hook(); });
    one.got().event.current_stream_wait();
    flight_type{buffer, from, rank, hooks}.fly();
  });
}

TEST_CASE("sums may overwrite the outputs that they are made of") {
  const batch from = small_batch(2, 8);
  with_buffers<group>(2, {}, [&](buffer_type& buffer, auto& comm) {
    flight_type one{buffer, from, comm.rank().index(), {}};
    one.dispatch();
    one.run_experts();
    one.combine_in_place();
  });
}

TEST_CASE("a handle of another buffer, of none, and of a shape that was cleaned away") {
  const batch from = small_batch(2);
  const batch other_shape = small_batch(2, 6);
  with_buffers<group>(2, {}, [&](buffer_type& buffer, auto& comm) {
    const std::size_t rank = comm.rank().index();
    buffer_type other{comm};
    flight_type one{other, from, rank, {}};
    one.dispatch();
    one.run_experts();
    auto args = one.combine_args();
    const auto combine = [&] { static_cast<void>(buffer.low_latency_combine(args)); };
    test::expect_error(invalid, {"low_latency_combine: handle", "another buffer"}, combine);
    args.handle = {};
    test::expect_error(invalid, {"low_latency_combine: handle", "another buffer"}, combine);
    one.combine();
    one.finish();

    flight_type gone{buffer, from, rank, hooks};
    gone.dispatch();
    test::expect_error(invalid, {"clean_low_latency_buffer", "hook"}, [&] {
      buffer.clean_low_latency_buffer(from.of.max_tokens, from.of.hidden, from.of.experts);
    });
    gone.receive();
    gone.run_experts();
    gone.combine();
    test::expect_error(invalid, {"clean_low_latency_buffer", "hook"},
                       [&] { buffer.clean_low_latency_buffer(1, 128, 1); });
    gone.finish();
    // What stays, stays valid.
    buffer.clean_low_latency_buffer(from.of.max_tokens, from.of.hidden, from.of.experts);
    gone.check();
    gone.check_sums();
    flight_type kept{buffer, from, rank, events};
    kept.dispatch();
    kept.receive();
    kept.run_experts();
    args = kept.combine_args();
    buffer.clean_low_latency_buffer(other_shape.of.max_tokens, other_shape.of.hidden,
                                    other_shape.of.experts);
    // New memory of another shape, which may lie where the old lay.
    for (std::size_t i = 0; i < 3; ++i) {
      test::expect_error(invalid, {"low_latency_combine: handle", "memory that was given back"},
                         combine);
      test::expect_error(invalid, {"hook"}, [&] { gone.got().hook(); });
      test::expect_error(invalid, {"hook"}, [&] { gone.back().hook(); });
      kept.got().event.current_stream_wait();
      flight_type{buffer, other_shape, rank, {}}.fly();
    }
  });
}

TEST_CASE("hooks and events may outlive the buffer, but not be called") {
  const batch from = small_batch(2);
  const int worst_status = group::run(2, [&](auto& comm) {
    deep_ep::recv_hook hook;
    deep_ep::event_overlap event;
    {
      buffer_type buffer{comm};
      flight_type one{
          buffer, from, comm.rank().index(), {.dispatch = ending::hook, .combine = ending::event}};
      one.fly();
      hook = one.got().hook;
      event = one.back().event;
    }
    test::expect_error(invalid, {"hook"}, [&] { hook(); });
    event.current_stream_wait();
  });
  CHECK(worst_status == 0);
}

TEST_CASE("another routing than the dispatch's is refused, and the combine can be made again") {
  const batch from = small_batch(2);
  with_buffers<group>(2, {}, [&](buffer_type& buffer, auto& comm) {
    flight_type one{buffer, from, comm.rank().index(), {}};
    one.dispatch();
    one.receive();
    one.run_experts();
    auto args = one.combine_args();
    auto ids = from.inputs[comm.rank().index()].experts;
    const std::int64_t was = ids[3];
    ids[3] = -1;
    args.topk_idx = deep_ep::view(ids, {from.inputs[comm.rank().index()].count, 2});
    test::expect_error(invalid,
                       {"low_latency_combine: topk_idx", "has -1", "token 1, slot 1",
                        std::to_string(was), "low_latency_dispatch"},
                       [&] { static_cast<void>(buffer.low_latency_combine(args)); });
    one.combine();
    one.finish();
  });
}

TEST_CASE("handles of different dispatches, one on each rank: refused on all at once") {
  const batch from = small_batch(3);
  for (const ending how : {ending::at_once, ending::hook, ending::event})
    with_buffers<group>(3, {.in_flight = 2}, [&](buffer_type& buffer, auto& comm) {
      const std::size_t rank = comm.rank().index();
      flight_type one{buffer, from, rank, {.combine = how}};
      flight_type two{buffer, from, rank, {.combine = how}};
      one.dispatch();
      two.dispatch();
      one.receive();
      two.receive();
      for (const std::size_t culprit : {1U, 2U}) {  // First uncombined, then combined before.
        flight_type& chosen = rank == culprit ? two : one;
        chosen.run_experts();
        test::expect_error(
            peerbus::errc::mismatch,
            {"low_latency_combine: handle is of call ", "of the buffer on rank 0 but of call ",
             culprit == 1 ? "of the buffer on rank 1, expected the same"
                          : "of the buffer on rank 2, expected the same"},
            [&] {
              const auto back = buffer.low_latency_combine(chosen.combine_args());
              if (how == ending::hook) back.hook();
              back.event.current_stream_wait();
            });
        one.combine_again({.combine = how});
        two.combine_again({.combine = how});
      }
      // One rank combines while the others dispatch.
      flight_type three{buffer, from, rank, {}};
      test::expect_error(peerbus::errc::mismatch, {"rank 2 combines but rank 0 dispatches"}, [&] {
        if (rank != 2) return three.dispatch();
        two.run_experts();
        const auto back = buffer.low_latency_combine(two.combine_args());
        if (how == ending::hook) back.hook();
        back.event.current_stream_wait();
      });
      two.combine_again({.combine = how});
      flight_type{buffer, from, rank, {.combine = how}}.fly();
    });
}

TEST_CASE("the place for outputs of different handles, one on each rank: refused on all at once") {
  const batch from = small_batch(3);
  with_buffers<group>(3, {.in_flight = 2, .zero_copy = true}, [&](buffer_type& buffer, auto& comm) {
    const std::size_t rank = comm.rank().index();
    const manner in_place{.zero_copy = true};
    flight_type one{buffer, from, rank, in_place};
    flight_type two{buffer, from, rank, in_place};
    one.fly();
    two.fly();
    const auto expect_mismatch = [&](std::string_view says, auto&& call) {
      test::expect_error(peerbus::errc::mismatch, {says}, call);
    };
    const auto place_of = [&](flight_type& flight) {
      static_cast<void>(buffer.get_next_low_latency_combine_buffer(flight.got().handle));
    };
    for (const std::size_t culprit : {1U, 0U, 2U}) {
      flight_type& chosen = rank == culprit ? two : one;
      const auto combine_both = [&] {
        one.combine_again(in_place);
        two.combine_again(in_place);
      };
      expect_mismatch("low_latency_combine: handle is of call ", [&] { place_of(chosen); });
      combine_both();
      // Some ranks come to the call without asking for the place.
      expect_mismatch("low_latency_combine: handle is of call ", [&] {
        if (rank == culprit) return place_of(chosen);
        static_cast<void>(buffer.low_latency_combine(chosen.combine_args()));
      });
      combine_both();
      // One asks, the others dispatch.
      expect_mismatch("combines but rank ", [&] {
        if (rank == culprit) return place_of(chosen);
        flight_type{buffer, from, rank, in_place}.dispatch();
      });
      combine_both();
      // The place can be asked for twice, and before a combine of the other handle.
      place_of(two);
      place_of(two);
      one.combine_again(in_place);
      if (rank != culprit) place_of(one);
      combine_both();
    }
    // Asked for, and not used.
    place_of(two);
    flight_type{buffer, from, rank, {}}.fly();
    flight_type{buffer, small_batch(3, 6), rank, {}}.fly();
    two.combine_again(in_place);
  });
}

TEST_CASE("a combine that two ranks find wrong, one of them while it waits for the other") {
  const batch from = small_batch(3);
  with_buffers<group>(3, {}, [&](buffer_type& buffer, auto& comm) {
    const std::size_t rank = comm.rank().index();
    flight_type one{buffer, from, rank, {}};
    one.fly();
    one.run_experts();
    auto args = one.combine_args();
    const std::vector<float> few(1);
    if (rank == 1) args.x = {};
    if (rank == 2) args.topk_weights = deep_ep::view(few, {1, 1});
    test::expect_error(rank == 0 ? peerbus::errc::refused : invalid,
                       {rank == 2 ? "topk_weights" : "x is none"},
                       [&] { static_cast<void>(buffer.low_latency_combine(args)); });
    one.combine_again({});
    flight_type{buffer, from, rank, {}}.fly();
  });
}

TEST_CASE("statistics add up over calls, and a slow rank shows up in its entry") {
  constexpr std::size_t ranks = 3;
  constexpr std::size_t slow = 1;
  constexpr auto late = std::chrono::milliseconds{60};
  const batch from = small_batch(ranks);
  with_buffers<group>(ranks, {}, [&](buffer_type& buffer, auto& comm) {
    const std::size_t rank = comm.rank().index();
    const auto experts = experts_of(from.of, rank);
    std::vector<std::int32_t> received(experts.size(), 1);
    std::vector<std::int64_t> waited(ranks);
    std::vector<std::int64_t> waited_home(ranks);
    // How often the slow rank was waited for longest: not always, as a machine may halt any rank.
    int longest = 0;
    int longest_home = 0;
    const auto is_longest = [&](const std::vector<std::int64_t>& now,
                                const std::vector<std::int64_t>& before) {
      const std::size_t third = 3 - rank - slow;
      return rank != slow && now[slow] - before[slow] > now[third] - before[third];
    };
    for (std::size_t i = 1; i <= 3; ++i) {
      const auto before = waited;
      const auto before_home = waited_home;
      flight_type one{buffer, from, rank, {}};
      auto args = one.dispatch_args();
      args.cumulative_local_expert_recv_stats = deep_ep::view(received, {received.size()});
      args.dispatch_wait_recv_cost_stats = deep_ep::view(waited, {ranks});
      comm.barrier();
      // Not to wait for others: to be waited for.
      if (rank == slow) std::this_thread::sleep_for(late);
      one.got() = buffer.low_latency_dispatch(args);
      longest += is_longest(waited, before) ? 1 : 0;
      for (std::size_t e = 0; e < experts.size(); ++e) {
        std::size_t rows = 0;
        for (std::size_t source = 0; source < ranks; ++source)
          rows += tokens_for(from, source, experts[e]).size();
        test::expect_equal(received[e], static_cast<std::int32_t>(1 + i * rows), "rows so far");
      }
      one.run_experts();
      auto back = one.combine_args();
      back.combine_wait_recv_cost_stats = deep_ep::view(waited_home, {ranks});
      comm.barrier();
      if (rank == slow) std::this_thread::sleep_for(late);
      static_cast<void>(buffer.low_latency_combine(back));
      longest_home += is_longest(waited_home, before_home) ? 1 : 0;
    }
    for (const auto& all : {waited, waited_home}) {
      test::expect_equal(all[rank], 0, "waited for oneself");
      if (rank == slow) continue;
      // Three times, but for how late this rank itself was.
      test::expect(all[slow] > std::chrono::nanoseconds{late}.count(),
                   "rank 1 was waited for at least 60 ms of 180, but ", all[slow], " ns");
    }
    if (rank != slow)
      test::expect(longest > 0 && longest_home > 0, "rank 1 was waited for longest ", longest,
                   " and ", longest_home, " times of 3");
  });
}

TEST_CASE(
    "what combine was given is read before it returns; out and weights are used by the hook") {
  const batch from = small_batch(3);
  for (const bool zero_copy : {false, true})
    with_buffers<group>(3, {.zero_copy = zero_copy}, [&](buffer_type& buffer, auto& comm) {
      for (const std::size_t gap : {0U, 8U, 24U}) {
        manner way = hooks;
        way.own_out = true;
        way.row_gap = gap;
        way.zero_copy = zero_copy && gap == 0;
        flight_type{buffer, from, comm.rank().index(), way}.fly();
      }
    });
}

TEST_CASE("a rank that does not come is named, by the call or by its hook") {
  const batch from = small_batch(3);
  for (const ending how : {ending::at_once, ending::hook, ending::event}) {
    const int worst_status = group::run(3, [&](auto& comm) {
      const std::size_t rank = comm.rank().index();
      auto gate = comm.make_window(0, 3);
      buffer_type buffer{comm};
      flight_type{buffer, from, rank, {}}.fly();
      if (rank != 1) {
        flight_type one{buffer, from, rank, {.dispatch = how}};
        auto args = one.dispatch_args();
        args.until = peerbus::deadline::after(std::chrono::milliseconds{50});
        test::expect_error(peerbus::errc::timed_out, {"dispatch 2", "rank 1"}, [&] {
          const auto got = buffer.low_latency_dispatch(args);
          if (how == ending::hook) got.hook();
          got.event.current_stream_wait();
        });
        test::expect_error(peerbus::errc::poisoned, {"rank 1"}, [&] { one.dispatch(); });
      }
      // Not gone before the others have given up: they would say so instead.
      const auto patient = peerbus::deadline::after(std::chrono::seconds{60});
      constexpr peerbus::rank_id late{1};
      if (rank != 1)
        test::expect_ok(gate.signal(late, static_cast<peerbus::signal_id>(rank), 1), "signal");
      for (const std::size_t peer : {0U, 2U})
        if (rank == 1)
          test::expect_ok(
              gate.wait(static_cast<peerbus::signal_id>(peer), 1, patient, peerbus::rank_id{peer}),
              "wait");
    });
    CHECK(worst_status == 0);
  }
}

}  // namespace low_latency_order_test
