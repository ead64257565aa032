// SPDX-License-Identifier: MIT
// ctest: tsan timeout=400
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/lane.hpp>
#include <peerbus/transport/loopback.hpp>

#include "conformance/exchange_suite.hpp"
#include "conformance/lanes_suite.hpp"
#include "support/exchange_check.hpp"
#include "support/on_lanes.hpp"
#include "support/oracle.hpp"
#include "support/ranks.hpp"

namespace lanes_threads_test {

using direct = test::threads_over<peerbus::loopback>;

TEST_CASE("several lanes move the same bytes as one") {
  for (const std::size_t ranks : {1U, 2U, 3U, 4U})
    for (const std::size_t lanes : {1U, 2U, 3U, 4U})
      conformance::check_lanes_all_layouts<direct>(ranks, lanes, 12);
}

namespace {

using peerbus::bf16;
using peerbus::errc;
using peerbus::moe::lane;

constexpr conformance::exchange_case shapes{7, 32, 3, 9};

template <class Communicator>
auto make_exchange(Communicator& comm) {
  return peerbus::moe::exchange{comm,
                                {.experts = shapes.experts,
                                 .hidden = shapes.hidden,
                                 .top_k = shapes.top_k,
                                 .max_tokens = shapes.max_tokens},
                                peerbus::codec::int8_per_token{}};
}

peerbus::deadline soon() { return peerbus::deadline::after(std::chrono::milliseconds{50}); }

}  // namespace

TEST_CASE("what lane 0 throws all lanes throw, and the exchange goes on") {
  for (const std::size_t ranks : {1U, 2U, 3U}) {
    const int worst_status = direct::run(ranks, [](auto& comm) {
      auto moe = make_exchange(comm);
      const std::size_t me = comm.rank().index();
      const bool bad = me + 1 == comm.size();
      test::on_lanes(3, [&](lane as) {
        for (std::uint64_t round = 0; round < 20; ++round) {
          const auto from = conformance::make_scenario(shapes, comm.size(), round);
          const oracle::input& mine = from.inputs[me];
          const std::span tokens{mine.tokens};
          std::vector<float> weights = mine.weights;
          if (bad) weights.emplace_back();
          test::expect_error(bad ? errc::invalid_argument : errc::refused,
                             {"dispatch", "weights, expected tokens x top_k"}, [&] {
                               (void)moe.dispatch(tokens, {mine.experts, weights}, {.as = as});
                             });
          const auto got = moe.dispatch(tokens, {mine.experts, mine.weights}, {.as = as});
          test::check_received(got, from, comm.rank());
          test::expect_error(errc::invalid_argument, {"dispatch_recv was given ticket 999"}, [&] {
            (void)moe.dispatch_recv(peerbus::moe::ticket{999, &moe}, {.as = as});
          });
          if (as.index == 0) test::run_experts(got);
          // All lanes give the same arguments; only lane 0's are looked at.
          std::vector<bf16> wrong(tokens.size() + (bad ? 1 : 0));
          test::expect_error(bad ? errc::invalid_argument : errc::refused, {"combine", "out with"},
                             [&] { moe.combine(got, wrong, {.as = as}); });
        }
      });
    });
    CHECK(worst_status == 0);
  }
}

TEST_CASE("the number of lanes may change from one operation to the next") {
  for (const std::size_t ranks : {1U, 2U, 4U}) {
    const int worst_status = direct::run(ranks, [](auto& comm) {
      auto moe = make_exchange(comm);
      using received = typename decltype(moe)::received_type;
      for (std::uint64_t round = 0; round < 20; ++round) {
        const auto from = conformance::make_scenario(shapes, comm.size(), round);
        const oracle::input& mine = from.inputs[comm.rank().index()];
        const auto lanes_of = [&](std::uint64_t part) {
          return static_cast<std::size_t>((round * 3 + part + comm.rank().index()) % 4 + 1);
        };
        peerbus::moe::ticket begun{};
        test::on_lanes(lanes_of(0), [&](lane as) {
          const auto mine_of_it =
              moe.dispatch_send(mine.tokens, {mine.experts, mine.weights}, {.as = as});
          if (as.index == 0) begun = mine_of_it;
        });
        std::optional<received> got;
        test::on_lanes(lanes_of(1), [&](lane as) {
          const auto mine_of_it = moe.dispatch_recv(begun, {.as = as});
          if (as.index == 0) got = mine_of_it;
        });
        test::check_received(*got, from, comm.rank());
        test::run_experts(*got);
        test::on_lanes(lanes_of(2), [&](lane as) { moe.combine_send(*got, {.as = as}); });
        std::vector<bf16> out(mine.tokens.size());
        test::on_lanes(lanes_of(3), [&](lane as) { moe.combine_recv(*got, out, {.as = as}); });
        test::check_combined(out,
                             oracle::combined<peerbus::codec::int8_per_token>(from.shape, mine),
                             shapes.hidden, 0);
      }
    });
    CHECK(worst_status == 0);
  }
}

TEST_CASE("lanes that do not fit together are told so, and the communicator is done") {
  struct wrong {
    lane first;
    lane second;
    errc code;
    std::string_view first_says;
    std::string_view second_says;
  };
  for (const wrong& one : {
           wrong{{0, 2},
                 {1, 3},
                 errc::invalid_argument,
                 "lane 0 says that there are 2 lanes, but lane 1 says 3",
                 "lane 1 says that there are 3 lanes, but lane 0 says 2"},
           {{0, 3}, {1, 3}, errc::timed_out, "lane 2 did not come in time", "lane 2 did not come"},
           {{1, 3}, {2, 3}, errc::timed_out, "lane 0 did not come in time", "lane 0 did not come"},
           {{2, 2},
            {65, 65},
            errc::invalid_argument,
            "lane 2 of 2, expected an index below",
            "lane 65 of 65, expected an index below the count, at most 64"},
       }) {
    CAPTURE(one.first_says);
    const int worst_status = direct::run(1, [&](auto& comm) {
      auto moe = make_exchange(comm);
      test::on_lanes(2, [&](lane thread) {
        const bool first = thread.index == 0;
        test::expect_error(one.code, {first ? one.first_says : one.second_says}, [&] {
          (void)moe.dispatch_send({}, {std::span<const std::int32_t>{}, {}},
                                  {.until = soon(), .as = first ? one.first : one.second});
        });
      });
      test::expect_error(errc::poisoned, {"dispatch: unusable since: lane "}, [&] {
        (void)moe.dispatch_send({}, {std::span<const std::int32_t>{}, {}});
      });
    });
    CHECK(worst_status == 0);
  }
}

TEST_CASE("lanes in different calls are told so, and nothing is carried out") {
  const int worst_status = direct::run(1, [&](auto& comm) {
    auto moe = make_exchange(comm);
    const auto got = moe.dispatch({}, {std::span<const std::int32_t>{}, {}});
    test::on_lanes(2, [&](lane as) {
      test::expect_error(
          errc::invalid_argument, {"lane 1 calls dispatch, but lane 0 calls combine"}, [&] {
            if (as.index == 0)
              moe.combine(got, {}, {.as = as});
            else
              (void)moe.dispatch({}, {std::span<const std::int32_t>{}, {}}, {.as = as});
          });
    });
  });
  CHECK(worst_status == 0);
}

}  // namespace lanes_threads_test
