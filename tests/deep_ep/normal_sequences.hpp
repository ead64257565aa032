// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/compat/deep_ep/buffer.hpp>
#include <peerbus/core/error.hpp>

#include "deep_ep/normal_form.hpp"
#include "deep_ep/normal_round.hpp"
#include "deep_ep/normal_suite.hpp"
#include "support/oracle.hpp"
#include "support/ranks.hpp"
#include "support/repetitions.hpp"

/// DeepEP's normal mode, for any group of ranks: calls in every order, and many of them.
namespace normal {

using peerbus::deep_ep::combine_result;
using peerbus::deep_ep::dispatch_handle;
using peerbus::deep_ep::dispatch_result;

/// A dispatch that is kept, with what it brought.
struct kept {
  problem p;
  form how;
  dispatch_handle handle;
  std::vector<std::byte> rows;

  void remember(const const_tensor& recv_x) {
    const auto* const first = static_cast<const std::byte*>(recv_x.data());
    rows.assign(first, first + recv_x.elements() * bytes_of(recv_x.type()));
  }
  [[nodiscard]] const_tensor recv_x() const {
    const std::size_t row = p.of.hidden * bytes_of(how.type);
    return {rows.data(), how.type, {rows.size() / row, p.of.hidden}};
  }
};

inline std::vector<model> some_models() {
  return {{6, 32, 2, 8, pattern::holes, batch::full},
          {13, 128, 4, 6, pattern::zipf, batch::uneven},
          {6, 32, 2, 8, pattern::one_rank, batch::uneven}};
}

/// A combine with `async_finish`, not waited for yet; what it reads stays here.
struct on_its_way {
  problem p;
  form how;
  combine_result result;
  std::vector<outputs> mine;
};

/// Fresh dispatches, dispatches along handles and combines, also again and again of one handle, in
/// any order that all ranks share; handles that are let go of and made again.
template <class Group>
void check_any_order(std::size_t ranks, std::size_t steps) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [steps](auto& comm) {
    peerbus::deep_ep::buffer buffer{comm, {.num_max_tokens_per_rank = 8}};
    const std::size_t rank = comm.rank().index();
    oracle::random same{comm.size() * 31 + 7};
    const auto models = some_models();
    std::vector<kept> all(5);
    std::deque<on_its_way> pending;
    const auto finish = [&] {
      pending.front().result.event.current_stream_wait();
      static_cast<void>(
          check_combined(pending.front().result, pending.front().p, rank, pending.front().how));
      pending.pop_front();
    };
    for (std::size_t step = 0; step < steps; ++step) {
      const std::size_t number = same.below(all.size());
      const std::size_t action = same.below(4);
      const std::uint64_t drawn = same.next();
      const auto act = [&] {
        kept& one = all[number];
        if (!one.handle || action == 0) {
          one.handle = {};
          one.p = problem_for(models[drawn % models.size()], comm.size(), step);
          one.how = {.biases = drawn % 3, .own_weights = drawn % 2 == 0};
          if (drawn % 5 == 0) one.how.type = dtype::float8_e4m3fn;
          const auto got = dispatched(buffer, one.p, rank, one.how);
          one.handle = got.handle;
          one.remember(got.recv_x);
        } else if (action == 1) {
          // Other values, another width, the same ways.
          one.p.seed += 1000;
          one.p.of.hidden = drawn % 3 == 0 ? 272 : 32;
          one.how.type = drawn % 2 == 0 ? dtype::bfloat16 : dtype::int8;
          one.remember(dispatched_along(buffer, one.p, rank, one.how, one.handle).recv_x);
        } else if (action == 2) {
          static_cast<void>(combined(buffer, one.p, rank, one.how, one.handle, one.recv_x()));
        } else {
          on_its_way next{one.p, one.how, {}, {}};
          next.how.async = true;
          next.mine.emplace_back(one.recv_x(), next.p, rank, next.how);
          next.result = buffer.combine(next.mine.back().args(one.handle));
          pending.push_back(std::move(next));
        }
      };
      in_case("step " + std::to_string(step) + ", handle " + std::to_string(number), [&] {
        const std::size_t before = pending.size();
        try {
          act();
        } catch (const peerbus::error& caught) {
          // On all ranks, if it needs the memory of a combine that is on its way.
          if (std::string{caught.what()}.find("never called") == std::string::npos) throw;
          test::expect_equal(before, 1U, "combines on their way");
          finish();
          return act();
        }
        if (before != 0) finish();
      });
    }
    while (!pending.empty()) finish();
  });
  CHECK(worst_status == 0);
}

/// Training's order: dispatch, combine; then backwards, which is a dispatch along the handle for
/// the combine, and a combine for the dispatch.
template <class Group>
void check_backward(std::size_t ranks) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [](auto& comm) {
    peerbus::deep_ep::buffer buffer{comm, {.num_max_tokens_per_rank = 8}};
    const std::size_t rank = comm.rank().index();
    std::vector<kept> layers;
    for (std::size_t layer = 0; layer < 4; ++layer) {
      kept& one = layers.emplace_back();
      one.p = problem_for(some_models()[layer % 2], comm.size(), layer);
      const auto got = dispatched(buffer, one.p, rank, one.how);
      one.handle = got.handle;
      static_cast<void>(combined(buffer, one.p, rank, one.how, one.handle, got.recv_x));
    }
    for (std::size_t layer = layers.size(); layer-- > 0;) {
      kept& one = layers[layer];
      one.p.seed += 50;
      one.remember(dispatched_along(buffer, one.p, rank, one.how, one.handle).recv_x);
      for (int again = 0; again < 3; ++again)
        static_cast<void>(combined(buffer, one.p, rank, one.how, one.handle, one.recv_x()));
      one.handle = {};
    }
  });
  CHECK(worst_status == 0);
}

/// As many dispatches as configured stay valid, and are combined in another order.
template <class Group>
void check_in_flight(std::size_t ranks) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [](auto& comm) {
    peerbus::deep_ep::buffer buffer{comm, {.num_max_tokens_per_rank = 8, .in_flight = 3}};
    const std::size_t rank = comm.rank().index();
    const form how{.biases = 1, .async = true};
    for (std::uint64_t round = 0; round < 6; ++round) {
      std::vector<problem> problems;
      std::vector<dispatch_result> got;
      for (std::uint64_t i = 0; i < 3; ++i) {
        model of = some_models()[0];
        of.sizes = (round + i) % 2 == 0 ? batch::full : batch::uneven;
        problems.push_back(problem_for(of, comm.size(), 3 * round + i));
        got.push_back(dispatched(buffer, problems.back(), rank, how));
      }
      std::vector<combine_result> home(3);
      std::deque<outputs> mine;
      const bool one_by_one = round % 3 == 2;
      std::optional<std::size_t> before;
      for (const std::size_t i : {2U, 0U, 1U}) {
        static_cast<void>(check_rows(got[i], problems[i], rank, how));
        check_routing(got[i], problems[i], rank, how);
        mine.emplace_back(got[i].recv_x, problems[i], rank, how);
        auto args = mine.back().args(got[i].handle);
        if (one_by_one && before) args.previous_event = home[*before].event;
        home[i] = buffer.combine(args);
        if (one_by_one && before)
          static_cast<void>(check_combined(home[*before], problems[*before], rank, how));
        before = i;
      }
      for (const std::size_t i : {1U, 2U, 0U}) {
        home[i].event.current_stream_wait();
        static_cast<void>(check_combined(home[i], problems[i], rank, how));
      }
    }
  });
  CHECK(worst_status == 0);
}

/// Events: before another call, and those that were never waited for.
template <class Group>
void check_events(std::size_t ranks) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [](auto& comm) {
    peerbus::deep_ep::buffer buffer{comm, {.num_max_tokens_per_rank = 8, .in_flight = 1}};
    const std::size_t rank = comm.rank().index();
    const problem p = problem_for(some_models()[0], comm.size(), 3);
    const form how{.biases = 2, .async = true};
    const given mine{p, rank, how};
    const auto layout = buffer.get_dispatch_layout(mine.ids(), p.of.experts);
    for (int round = 0; round < 4; ++round) {
      const auto got = dispatched(buffer, p, rank, how);
      const outputs out{got.recv_x, p, rank, how};
      const auto home = buffer.combine(out.args(got.handle));
      auto next = mine.fresh(layout);
      test::expect_error(peerbus::errc::invalid_argument, {"dispatch", "event", "never called"},
                         [&] { static_cast<void>(buffer.dispatch(next)); });
      if (round % 2 == 0) {
        next.previous_event = home.event;
        static_cast<void>(buffer.dispatch(next));
      } else {
        home.event.current_stream_wait();
      }
      static_cast<void>(check_combined(home, p, rank, how));
    }
    peerbus::deep_ep::event_overlap{}.current_stream_wait();  // Nothing to wait for.
    peerbus::deep_ep::event_overlap kept;
    {
      peerbus::deep_ep::buffer brief{comm, {.num_max_tokens_per_rank = 8}};
      const auto got = dispatched(brief, p, rank, how);
      const outputs out{got.recv_x, p, rank, how};
      kept = brief.combine(out.args(got.handle)).event;
      comm.barrier();  // All ranks' rows are out before any memory goes.
    }
    kept.current_stream_wait();  // Its buffer is gone: nothing to wait for either.
  });
  CHECK(worst_status == 0);
}

/// Calls in which one rank alone has more tokens than there is memory for: all ranks take more in
/// that call. What was dispatched before stays, and so does a combine that is on its way.
template <class Group>
void check_growth(std::size_t ranks) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [](auto& comm) {
    peerbus::deep_ep::buffer buffer{comm, {.num_max_tokens_per_rank = 4, .in_flight = 1}};
    const std::size_t rank = comm.rank().index();
    std::uint64_t seed = 0;
    // The culprit has `most` tokens, the other ranks as many as there is memory for or none.
    const auto problem_of = [&](std::size_t culprit, std::size_t most, std::size_t hidden) {
      const pattern routes = ++seed % 2 == 0 ? pattern::holes : pattern::zipf;
      problem p = problem_for({6, hidden, 2, most, routes}, comm.size(), seed);
      const problem few = problem_for({6, hidden, 2, 4, routes}, comm.size(), seed);
      const problem none = problem_for({6, hidden, 2, 4, routes, batch::none}, comm.size(), seed);
      for (std::size_t r = 0; r < comm.size(); ++r)
        if (r != culprit) p.ranks[r] = (r % 2 == 0 ? few : none).ranks[r];
      return p;
    };
    std::size_t hidden = 32;
    for (const std::size_t culprit : {std::size_t{0}, comm.size() - 1})
      for (const form& how : std::vector<form>{
               {},
               {.biases = 1, .async = true},
               {.type = dtype::int8, .scales = scale_form::columns, .narrow_ids = true},
               {.with_topk = false, .weights = false}}) {
        hidden += 16;  // Memory of its own.
        const problem small = problem_of(culprit, 4, hidden);
        auto before = dispatched(buffer, small, rank, how);
        kept remembered{small, how, before.handle, {}};
        remembered.remember(before.recv_x);
        // On its way if `how` is asynchronous. Its batch is the only one of that memory.
        const outputs sent{before.recv_x, small, rank, how};
        const auto home = buffer.combine(sent.args(before.handle));
        if (rank != culprit) home.event.current_stream_wait();
        for (const std::size_t most : {5U, 21U, 4U, 22U}) {
          const problem p = problem_of(culprit, most, hidden);
          const auto got = dispatched(buffer, p, rank, how);
          test::expect_equal(got.handle.num_max_tokens_per_rank, std::size_t{most == 5U ? 8U : 32U},
                             "room");
          kept later{p, how, got.handle, {}};
          later.remember(got.recv_x);
          static_cast<void>(dispatched_along(buffer, p, rank, how, got.handle));
          static_cast<void>(combined(buffer, p, rank, how, later.handle, later.recv_x()));
          // The memory for handles whose batch is replaced grows as well.
          static_cast<void>(dispatched(buffer, small, rank, how));
          static_cast<void>(combined(buffer, p, rank, how, later.handle, later.recv_x()));
        }
        static_cast<void>(
            combined(buffer, small, rank, how, remembered.handle, remembered.recv_x()));
      }
    // Another rank names an expert that does not exist, which the exchange finds: refused on all.
    for (std::size_t most = 60; most < 300; most *= 2) {
      const std::size_t culprit = comm.size() - 1;
      problem p = problem_of(culprit, most, 32);
      const auto layout = buffer.get_dispatch_layout(given{p, rank, {}}.ids(), p.of.experts);
      if (rank == 0) p.ranks[0].ids[0] = 6;
      const given mine{p, rank, {}};
      test::expect_error(rank == 0 ? peerbus::errc::invalid_argument : peerbus::errc::refused,
                         {"expert id 6 at token 0, slot 0"},
                         [&] { static_cast<void>(buffer.dispatch(mine.fresh(layout))); });
      static_cast<void>(round_trip(buffer, problem_of(culprit, most, 32), rank, {}));
    }
    // More rows of results than there is memory for.
    const problem p = problem_of(0, 4, 32);
    for (const std::size_t worst : {comm.size() * 256, comm.size() * 600 + 1})
      static_cast<void>(round_trip(buffer, p, rank, {.worst = worst}));
  });
  CHECK(worst_status == 0);
}

/// Shapes as graphs capture them: after one call of the largest, all results of calls of equal
/// `num_worst_tokens` and `num_max_tokens_per_rank` lie at the same addresses, whatever arrives.
/// Ranks have other numbers of tokens in each step, or none.
template <class Group>
void check_captured_shapes(std::size_t ranks) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [](auto& comm) {
    peerbus::deep_ep::buffer buffer{comm, {.num_max_tokens_per_rank = 8, .in_flight = 1}};
    const std::size_t rank = comm.rank().index();
    std::map<std::size_t, std::vector<const void*>> captured;
    for (std::uint64_t step = 0; step < 24; ++step) {
      const std::size_t bound = step == 0 ? 16 : std::size_t{4} << (step % 3);
      const batch sizes = step % 7 == 6 ? batch::none : step % 5 == 0 ? batch::full : batch::uneven;
      const problem p = problem_for({6, 32, 2, bound, pattern::holes, sizes}, comm.size(), step);
      const form how{.worst = comm.size() * bound};
      in_case("step " + std::to_string(step), [&] {
        const given mine{p, rank, how};
        const auto layout = buffer.get_dispatch_layout(mine.ids(), p.of.experts);
        auto args = mine.fresh(layout);
        args.num_max_tokens_per_rank = bound;
        const auto got = buffer.dispatch(args);
        static_cast<void>(check_rows(got, p, rank, how));
        check_routing(got, p, rank, how);
        const outputs own{got.recv_x, p, rank, how};
        const auto home = buffer.combine(own.args(got.handle));
        static_cast<void>(check_combined(home, p, rank, how));
        const std::vector<const void*> at{got.recv_x.data(), got.recv_topk_idx.data(),
                                          got.recv_topk_weights.data(), home.combined_x.data()};
        test::expect(captured.try_emplace(bound, at).first->second == at,
                     "results where they lay when their shape was captured");
      });
    }
  });
  CHECK(worst_status == 0);
}

/// Buffers that share a communicator, with results of both alive.
template <class Group>
void check_two_buffers(std::size_t ranks) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [](auto& comm) {
    peerbus::deep_ep::buffer one{comm, {.num_max_tokens_per_rank = 8}};
    peerbus::deep_ep::buffer other{comm, {.num_max_tokens_per_rank = 9, .in_flight = 3}};
    const std::size_t rank = comm.rank().index();
    for (std::uint64_t round = 0; round < 4; ++round) {
      const problem p = problem_for(some_models()[round % 3], comm.size(), round);
      const problem q = problem_for(some_models()[1], comm.size(), round + 10);
      const auto of_p = dispatched(one, p, rank, {});
      const auto of_q = dispatched(other, q, rank, {.biases = 1});
      static_cast<void>(check_rows(of_p, p, rank, {}));
      static_cast<void>(combined(other, q, rank, {.biases = 1}, of_q.handle, of_q.recv_x));
      static_cast<void>(combined(one, p, rank, {}, of_p.handle, of_p.recv_x));
    }
  });
  CHECK(worst_status == 0);
}

/// The same input gives the same bytes, whatever came between; results that nobody combines, and
/// many calls.
template <class Group>
void check_repeats(std::size_t ranks, std::size_t many) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [many](auto& comm) {
    peerbus::deep_ep::buffer buffer{comm, {.num_max_tokens_per_rank = 16}};
    const std::size_t rank = comm.rank().index();
    const problem p = problem_for({24, 256, 6, 16, pattern::zipf}, comm.size(), 42);
    const auto first = dispatched(buffer, p, rank, {});
    std::vector<kept> old(1, kept{p, {}, first.handle, {}});
    old[0].remember(first.recv_x);
    const std::uint64_t expected = round_trip(buffer, p, rank, {});
    for (std::uint64_t again = 0; again < test::repetitions(20, 3); ++again) {
      const problem other = problem_for(some_models()[again % 3], comm.size(), again);
      static_cast<void>(dispatched(buffer, other, rank, {}));  // Never combined.
      test::expect_equal(round_trip(buffer, p, rank, {}), expected, "hash of repeat ", again);
    }
    static_cast<void>(combined(buffer, p, rank, {}, old[0].handle, old[0].recv_x()));
    for (std::uint64_t n = 0; n < test::repetitions(many, 6); ++n) {
      const batch sizes = n % 3 == 0 ? batch::full : n % 3 == 1 ? batch::uneven : batch::one_rank;
      const problem small = problem_for({4, 16, 2, 2, pattern::holes, sizes}, comm.size(), n);
      static_cast<void>(round_trip(buffer, small, rank, {.biases = n % 2}));
    }
  });
  CHECK(worst_status == 0);
}

}  // namespace normal
