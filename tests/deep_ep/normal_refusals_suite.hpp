// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/compat/deep_ep/buffer.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>

#include "deep_ep/normal_form.hpp"
#include "deep_ep/normal_refusals.hpp"
#include "deep_ep/normal_round.hpp"
#include "deep_ep/normal_suite.hpp"
#include "support/ranks.hpp"

/// Refusals of DeepEP's normal calls, for any group of ranks.
namespace normal {

/// Three ranks whose tokens all go to all of them: each receives 12 rows.
inline problem to_all_three() {
  problem p = problem_for({6, 32, 3, 4}, 3, 1);
  for (auto& one : p.ranks)
    for (std::size_t i = 0; i < one.ids.size(); ++i) {
      one.ids[i] = static_cast<std::int64_t>((2 * i + i / 3 % 2) % 6);
      one.weights[i] = static_cast<float>(i + 1) / 8.0F;
    }
  return p;
}

/// What one rank can see for itself: refused on all ranks, which then call as they should.
template <class Group>
void check_refused_dispatches() {
  const int worst_status = Group::run(3, [](auto& comm) {
    const peerbus::deep_ep::buffer_options options{.num_max_tokens_per_rank = 4};
    peerbus::deep_ep::buffer buffer{comm, options};
    peerbus::deep_ep::buffer other{comm, options};
    const std::size_t rank = comm.rank().index();
    const problem p = to_all_three();
    const given mine{p, rank, {}};
    const auto layout = buffer.get_dispatch_layout(mine.ids(), p.of.experts);
    const auto call = [&](const dispatch_args& args) { return buffer.dispatch(args); };

    std::size_t turn = 0;
    for (const auto& one : bad_dispatches()) {
      expect_refused_by(turn++ % 3, rank, one, mine.fresh(layout), call);
      static_cast<void>(round_trip(buffer, p, rank, {}));
    }
    const auto kept = dispatched(buffer, p, rank, {});
    for (const auto& one : bad_cached_dispatches()) {
      expect_refused_by(turn++ % 3, rank, one, mine.along(kept.handle), call);
      static_cast<void>(dispatched_along(buffer, p, rank, {}, kept.handle));
    }
    const auto foreign = dispatched(other, p, rank, {});
    test::expect_error(errc::invalid_argument,
                       {"dispatch: handle is of another buffer, expected one of this buffer"},
                       [&] { static_cast<void>(call(mine.along(foreign.handle))); });
    static_cast<void>(round_trip(buffer, p, rank, {.biases = 2}));
  });
  CHECK(worst_status == 0);
}

template <class Group>
void check_refused_combines() {
  const int worst_status = Group::run(3, [](auto& comm) {
    const peerbus::deep_ep::buffer_options options{.num_max_tokens_per_rank = 4};
    peerbus::deep_ep::buffer buffer{comm, options};
    peerbus::deep_ep::buffer other{comm, options};
    const std::size_t rank = comm.rank().index();
    const problem p = to_all_three();
    const auto call = [&](const combine_args& args) { return buffer.combine(args); };
    const auto foreign = dispatched(other, p, rank, {});
    const auto got = dispatched(buffer, p, rank, {});
    const outputs mine{got.recv_x, p, rank, {}};

    std::size_t turn = 0;
    const bool combined_before[]{false, true};
    for (const bool between : combined_before)
      for (const auto& one : bad_combines()) {
        expect_refused_by(turn++ % 3, rank, one, mine.args(got.handle), call);
        if (between) static_cast<void>(check_combined(call(mine.args(got.handle)), p, rank, {}));
      }
    test::expect_error(errc::invalid_argument,
                       {"combine: handle is of another buffer, expected one of this buffer"},
                       [&] { static_cast<void>(call(mine.args(foreign.handle))); });
    static_cast<void>(round_trip(buffer, p, rank, {.biases = 1}));
    static_cast<void>(combined(other, p, rank, {}, foreign.handle, foreign.recv_x));
  });
  CHECK(worst_status == 0);
}

/// Arguments that differ on one rank after calls that were alike: a mismatch on all ranks, which
/// then call as they should, with the handle of before.
template <class Group>
void check_differing_ranks(std::size_t ranks) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [](auto& comm) {
    peerbus::deep_ep::buffer buffer{comm, {.num_max_tokens_per_rank = 4}};
    const std::size_t rank = comm.rank().index();
    const problem p = problem_for({6, 32, 3, 4}, comm.size(), 1);
    struct differing {
      model of;
      form how;
      std::string_view says;
    };
    for (const std::size_t culprit : {std::size_t{0}, comm.size() - 1})
      for (const auto& [of, how, says] :
           {differing{{6, 64, 3, 4}, {}, "dispatch: hidden is "},
            {{7, 32, 3, 4}, {}, "dispatch: num_experts is "},
            {{6, 32, 2, 4}, {}, "dispatch: num_topk is "},
            {{6, 32, 3, 4}, {.type = dtype::int8}, "dispatch: the type of x is "},
            {{6, 32, 3, 4}, {.scales = scale_form::flat}, "dispatch: bytes of x_scales of a token"},
            {{6, 32, 3, 4}, {.with_topk = false}, "dispatch: "}}) {
        static_cast<void>(round_trip(buffer, p, rank, {}));
        const auto before = dispatched(buffer, p, rank, {});
        const problem other = problem_for(of, comm.size(), 1);
        const given mine{rank == culprit ? other : p, rank, rank == culprit ? how : form{}};
        const auto layout =
            buffer.get_dispatch_layout(mine.ids(), rank == culprit ? of.experts : p.of.experts);
        test::expect_error(errc::mismatch, {says, "on rank 0 but ", "expected the same"},
                           [&] { static_cast<void>(buffer.dispatch(mine.fresh(layout))); });

        const given whole{p, rank, {}};
        auto limited = whole.fresh(buffer.get_dispatch_layout(whole.ids(), p.of.experts));
        limited.num_max_tokens_per_rank = rank == culprit ? 5 : 4;
        test::expect_error(errc::mismatch, {"dispatch: num_max_tokens_per_rank is "},
                           [&] { static_cast<void>(buffer.dispatch(limited)); });

        // A combine of the handle before by another hidden size, then as it should be.
        const outputs out{before.recv_x, p, rank, {}};
        auto args = out.args(before.handle);
        const std::size_t rows = before.recv_x.size(0);
        const std::vector<bf16> wide(rows * 64);
        if (rank == culprit) args.x = {wide.data(), bf16_type, {rows, 64}};
        test::expect_error(errc::mismatch, {"hidden is ", "32 on rank ", "64 on rank "},
                           [&] { static_cast<void>(buffer.combine(args)); });
        static_cast<void>(combined(buffer, p, rank, {}, before.handle, before.recv_x));
      }
  });
  CHECK(worst_status == 0);
}

/// Handles of different dispatches of one shape, one on each rank: a mismatch on all ranks at once,
/// whether the memory of these dispatches is used again or not. The buffer goes on.
template <class Group>
void check_differing_handles(std::size_t ranks) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [](auto& comm) {
    peerbus::deep_ep::buffer buffer{comm, {.num_max_tokens_per_rank = 4}};
    const std::size_t rank = comm.rank().index();
    for (const bool with_topk : {true, false}) {
      const form how{.with_topk = with_topk, .weights = with_topk};
      struct of_before {
        problem p;
        peerbus::deep_ep::dispatch_handle handle;
        std::vector<bf16> rows;
      };
      std::vector<of_before> all;
      const auto dispatch = [&](std::uint64_t seed) {
        problem p = problem_for({6, 32, 3, 4}, comm.size(), seed);
        const auto got = dispatched(buffer, p, rank, how);
        const std::span rows{static_cast<const bf16*>(got.recv_x.data()), got.recv_x.elements()};
        all.push_back({std::move(p), got.handle, {rows.begin(), rows.end()}});
      };
      const auto expect_mismatch = [&](std::string_view says, auto&& call) {
        test::expect_error(errc::mismatch, {says, "expected the same"}, call);
      };
      const auto combine = [&](const of_before& one) {
        const const_tensor recv_x{one.rows.data(), bf16_type, {one.rows.size() / 32, 32}};
        const outputs mine{recv_x, one.p, rank, how};
        buffer.combine(mine.args(one.handle)).event.current_stream_wait();
      };
      for (std::uint64_t seed = 1; seed <= 4; ++seed) dispatch(seed);  // Two of them replaced.
      const bool differs = rank == comm.size() - 1;
      for (const bool again : {false, true}) {
        CAPTURE(again);
        expect_mismatch("combine: handle is of call ", [&] { combine(all[differs ? 3 : 2]); });
        expect_mismatch("dispatch: handle is of call ", [&] { combine(all[differs ? 1 : 0]); });
        expect_mismatch("", [&] { combine(all[differs ? 1 : 2]); });
        expect_mismatch("dispatch: handle is of call ", [&] {
          const of_before& one = all[differs ? 1 : 0];
          static_cast<void>(buffer.dispatch(given{one.p, rank, how}.along(one.handle)));
        });
        expect_mismatch("dispatch: handle is ", [&] {
          const of_before& one = all[3];
          const given mine{one.p, rank, how};
          const auto layout = buffer.get_dispatch_layout(mine.ids(), one.p.of.experts);
          static_cast<void>(buffer.dispatch(differs ? mine.along(one.handle) : mine.fresh(layout)));
        });
        for (const of_before& one : all) combine(one);
        all.clear();
        for (std::uint64_t seed = 5; seed <= 8; ++seed) dispatch(seed);
        if (again) continue;
        combine(all[3]);
        combine(all[2]);
      }
    }
  });
  CHECK(worst_status == 0);
}

/// What all ranks must know of: one rank's input is bad, none of them has dispatched.
template <class Group>
void check_refused_everywhere(std::size_t ranks) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [](auto& comm) {
    peerbus::deep_ep::buffer buffer{comm, {.num_max_tokens_per_rank = 4, .in_flight = 3}};
    const std::size_t rank = comm.rank().index();
    const problem p = problem_for({6, 32, 2, 4}, comm.size(), 2);
    const auto before = dispatched(buffer, p, rank, {});

    struct spoilt {
      std::size_t token;
      std::int64_t first;
      std::int64_t second;
      std::string_view says;
    };
    for (const std::size_t culprit : {std::size_t{0}, comm.size() - 1}) {
      for (const bool with_topk : {true, false}) {
        problem many = problem_for({6, 32, 2, 5}, comm.size(), 3);
        for (std::size_t r = 0; r < comm.size(); ++r)
          if (r != culprit) many.ranks[r] = p.ranks[r];
        const given mine{many, rank, {.with_topk = with_topk}};
        const auto layout = buffer.get_dispatch_layout(mine.ids(), 6);
        auto args = mine.fresh(layout);
        args.num_max_tokens_per_rank = 4;
        test::expect_error(rank == culprit ? errc::invalid_argument : errc::refused,
                           {"5 tokens, expected at most num_max_tokens_per_rank, 4"},
                           [&] { static_cast<void>(buffer.dispatch(args)); });
      }
      for (const spoilt& one : {
               spoilt{2, 6, 0, "expert id 6 at token 2, slot 0, expected -1 or 0 to 5"},
               {0, -1, 7, "expert id 7 at token 0, slot 1, expected -1 or 0 to 5"},
               {3, std::int64_t{1} << 40, -1, "expert id 1099511627776 at token 3, slot 0"},
               {1, 4, 4, "expert id 4 again at token 1, slot 1"},
           }) {
        problem bad = p;
        if (rank == culprit) {
          bad.ranks[rank].ids[2 * one.token] = one.first;
          bad.ranks[rank].ids[2 * one.token + 1] = one.second;
        }
        const given mine{bad, rank, {}};
        const bool countable = rank != culprit || one.first == one.second;
        const given sound{p, rank, {}};
        const auto layout =
            buffer.get_dispatch_layout(countable ? mine.ids() : sound.ids(), p.of.experts);
        test::expect_error(rank == culprit ? errc::invalid_argument : errc::refused, {one.says},
                           [&] { static_cast<void>(buffer.dispatch(mine.fresh(layout))); });
      }
      static_cast<void>(round_trip(buffer, p, rank, {}));
    }
    // What was dispatched before all that.
    static_cast<void>(combined(buffer, p, rank, {}, before.handle, before.recv_x));
  });
  CHECK(worst_status == 0);
}

/// Weights that only some ranks give to a combine, after rounds in which all did: refused on all
/// ranks. The same handle can be combined again, and the buffer goes on.
template <class Group>
void check_weights_of_some(std::size_t ranks) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [](auto& comm) {
    const peerbus::deep_ep::buffer_options options{.num_max_tokens_per_rank = 4};
    peerbus::deep_ep::buffer buffer{comm, options};
    const std::size_t rank = comm.rank().index();
    std::uint64_t seed = 0;
    const auto next_problem = [&] { return problem_for({6, 32, 3, 4}, comm.size(), ++seed); };
    for (const bool async : {false, true})
      for (const bool first_gives : {true, false}) {
        for (std::size_t i = 0; i < options.in_flight; ++i)
          static_cast<void>(round_trip(buffer, next_problem(), rank, {}));
        const problem p = next_problem();
        const auto got = dispatched(buffer, p, rank, {});
        const form how{.async = async, .weights = (rank == 0) == first_gives};
        const outputs mine{got.recv_x, p, rank, how};
        test::expect_error(
            errc::mismatch,
            {first_gives ? "combine: topk_weights was given on rank 0 but not on rank 1"
                         : "combine: topk_weights was given on rank 1 but not on rank 0",
             "expected on all ranks or on none"},
            [&] { buffer.combine(mine.args(got.handle)).event.current_stream_wait(); });
        static_cast<void>(combined(buffer, p, rank, {}, got.handle, got.recv_x));
      }
    static_cast<void>(round_trip(buffer, next_problem(), rank, {.weights = false}));
    static_cast<void>(round_trip(buffer, next_problem(), rank, {}));
  });
  CHECK(worst_status == 0);
}

/// Limits, one beyond and at them.
template <class Group>
void check_limits(std::size_t ranks) {
  const int worst_status = Group::run(ranks, [](auto& comm) {
    peerbus::deep_ep::buffer sound{comm, {.num_max_tokens_per_rank = 4}};
    const std::size_t rank = comm.rank().index();
    const auto refuse = [&](const model& of, const form& how,
                            std::initializer_list<std::string_view> says) {
      in_case(describe(of), [&] {
        test::expect_error(errc::invalid_argument, says, [&] {
          static_cast<void>(round_trip(sound, problem_for(of, comm.size(), 1), rank, how));
        });
      });
    };
    const form fp8{.type = dtype::float8_e4m3fn};
    refuse({40, 32, 33, 4}, {}, {"top_k", "33", "32"});
    static_cast<void>(round_trip(sound, problem_for({40, 32, 32, 4}, comm.size(), 1), rank, {}));
    refuse({4, 12, 2, 4}, {}, {"hidden", "12"});
    static_cast<void>(round_trip(sound, problem_for({4, 8, 2, 4}, comm.size(), 1), rank, {}));
    refuse({4, 24, 2, 4}, fp8, {"hidden", "24"});
    static_cast<void>(round_trip(sound, problem_for({4, 48, 2, 4}, comm.size(), 1), rank, fp8));

    const auto refuse_options = [&](const peerbus::deep_ep::buffer_options& options,
                                    std::string_view says) {
      test::expect_error(errc::invalid_argument, {says},
                         [&] { peerbus::deep_ep::buffer never{comm, options}; });
    };
    refuse_options({.num_max_tokens_per_rank = 0}, "num_max_tokens_per_rank is 0, expected at");
    refuse_options({.in_flight = 0}, "in_flight is 0, expected 1 to 16");
    refuse_options({.in_flight = 17}, "in_flight is 17, expected 1 to 16");
    peerbus::deep_ep::buffer most{comm, {.num_max_tokens_per_rank = 4, .in_flight = 16}};
    static_cast<void>(round_trip(most, problem_for({4, 32, 2, 4}, comm.size(), 1), rank, {}));
  });
  CHECK(worst_status == 0);
}

/// More ranks than a token can go to without topk_idx.
template <class Group>
void check_too_many_ranks() {
  const int worst_status = Group::run(33, [](auto& comm) {
    peerbus::deep_ep::buffer buffer{comm, {.num_max_tokens_per_rank = 2}};
    const problem p = problem_for({33, 16, 33, 2}, comm.size(), 1);
    const given mine{p, comm.rank().index(), {.with_topk = false}};
    const auto layout = buffer.get_dispatch_layout(mine.ids(), 33);
    test::expect_error(errc::invalid_argument,
                       {"is_token_in_rank has token 0 go to more than 32 ranks"},
                       [&] { static_cast<void>(buffer.dispatch(mine.fresh(layout))); });
  });
  CHECK(worst_status == 0);
}

/// Deadlines of calls that one rank does not make. Ranks are threads.
template <class Group>
void check_deadlines() {
  for (const bool in_combine : {false, true}) {
    std::atomic<bool> done{false};
    const int worst_status = Group::run(2, [&](auto& comm) {
      peerbus::deep_ep::buffer buffer{comm, {.num_max_tokens_per_rank = 4}};
      const std::size_t rank = comm.rank().index();
      const problem p = problem_for({6, 32, 3, 4}, 2, 1);
      const auto got = dispatched(buffer, p, rank, {});
      if (rank == 1) {
        while (!done.load()) std::this_thread::yield();
        return;
      }
      // Whatever happens, or the other rank would wait for ever.
      const auto set = [](std::atomic<bool>* flag) { *flag = true; };
      const std::unique_ptr<std::atomic<bool>, decltype(set)> release{&done, set};
      const auto until = peerbus::deadline::after(std::chrono::milliseconds{20});
      test::expect_error(errc::timed_out, {"rank 1"}, [&] {
        const outputs mine{got.recv_x, p, rank, {}};
        auto combine = mine.args(got.handle);
        const given whole{p, rank, {}};
        auto dispatch = whole.along(got.handle);
        combine.until = dispatch.until = until;
        if (in_combine)
          static_cast<void>(buffer.combine(combine));
        else
          static_cast<void>(buffer.dispatch(dispatch));
      });
    });
    CHECK(worst_status == 0);
  }
}

}  // namespace normal
