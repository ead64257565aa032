// SPDX-License-Identifier: MIT
// ctest: timeout=300
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/core/bf16.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/lane.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/received.hpp>
#include <peerbus/moe/received_slots.hpp>
#include <peerbus/moe/received_token_slots.hpp>
#include <peerbus/moe/received_tokens.hpp>
#include <peerbus/trace/recorder.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/loopback.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "support/background.hpp"
#include "support/counted_new.hpp"
#include "support/exchange_check.hpp"
#include "support/indirect.hpp"
#include "support/oracle.hpp"
#include "support/ranks.hpp"
#include "support/repetitions.hpp"

namespace allocation_test {

// The data path allocates nothing: every operator new of this program counts.

namespace {

using test::allocations;

constexpr peerbus::moe::exchange_config config{
    .experts = 10, .hidden = 128, .top_k = 4, .max_tokens = 16};

/// Inputs of different sizes, none among them.
std::vector<oracle::input> make_inputs(std::size_t ranks, std::size_t rank) {
  const oracle::shape shape{ranks, config.experts, config.hidden, config.top_k};
  std::vector<oracle::input> inputs;
  for (std::size_t i = 0; i < 5; ++i)
    inputs.push_back(oracle::make_input(shape, rank, 4 * i, oracle::routes::holes, i));
  return inputs;
}

template <class Codec>
void fill_outputs(const peerbus::moe::received<Codec>& got) {
  for (const auto& expert : got.experts())
    for (auto& value : expert.outputs()) value = peerbus::bf16{1.0F};
}
template <class Codec>
void fill_outputs(const peerbus::moe::received_tokens<Codec>& got) {
  for (auto& value : got.outputs()) value = peerbus::bf16{1.0F};
}
template <class Codec>
void fill_outputs(const peerbus::moe::received_slots<Codec>& got) {
  for (auto& value : got.columns().outputs()) value = peerbus::bf16{1.0F};
}
template <class Codec>
void fill_outputs(const peerbus::moe::received_token_slots<Codec>& got) {
  for (auto& value : got.all().outputs()) value = peerbus::bf16{1.0F};
}

/// `operate()` is done once, which may touch things for the first time, then many times.
template <class Operate>
void expect_no_allocation(Operate&& operate) {
  operate();
  const std::uint64_t before = allocations;
  for (std::uint64_t i = 0; i < test::repetitions(100); ++i) operate();
  test::expect_equal(allocations - before, 0U, "allocations");
}

template <class Group, class Codec>
void check_no_allocation(std::size_t ranks) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [](auto& comm) {
    peerbus::moe::exchange moe{comm, config, oracle::codec_of<Codec>::make()};
    const auto inputs = make_inputs(comm.size(), comm.rank().index());
    std::vector<peerbus::bf16> out(config.max_tokens * config.hidden);
    std::size_t next = 4;
    expect_no_allocation([&] {
      const oracle::input& mine = inputs[next++ % inputs.size()];
      const auto got = moe.dispatch(mine.tokens, {mine.experts, mine.weights});
      fill_outputs(got);
      moe.combine(got, std::span{out}.first(mine.tokens.size()));
      comm.barrier();
    });
  });
  CHECK(worst_status == 0);
}

/// Three batches in flight, by halves of operations, of which a recorder may keep the events.
template <class Group, class Layout>
void check_no_allocation_in_flight(std::size_t ranks, Layout layout, bool records = false) {
  CAPTURE(ranks);
  CAPTURE(Layout::name);
  const int worst_status = Group::run(ranks, [layout, records](auto& comm) {
    peerbus::recorder events{{.events = 64}};
    if (records) comm.members()->listeners().add(events);
    auto three = config;
    three.in_flight = 3;
    three.attachments = {8, 512};
    peerbus::moe::exchange moe{comm, three, peerbus::codec::int8_per_token{}, layout};
    const auto inputs = make_inputs(comm.size(), comm.rank().index());
    const std::vector<std::byte> attached(config.max_tokens * 512);
    std::vector<peerbus::bf16> out(config.max_tokens * config.hidden);
    std::size_t next = 0;
    expect_no_allocation([&] {
      const oracle::input* mine[3];
      peerbus::moe::ticket begun[3];
      for (std::size_t i = 0; i < 3; ++i) {
        mine[i] = &inputs[next++ % inputs.size()];
        begun[i] = moe.dispatch_send(
            mine[i]->tokens, {mine[i]->experts, mine[i]->weights},
            {.attachments = {std::span<const std::byte>{attached}.first(mine[i]->count * 8),
                             std::span<const std::byte>{attached}.first(mine[i]->count * 512)}});
      }
      const auto b = moe.dispatch_recv(begun[1]);
      const auto a = moe.dispatch_recv(begun[0]);
      fill_outputs(b);
      moe.combine_send(b);
      const auto c = moe.dispatch_recv(begun[2]);
      fill_outputs(a);
      fill_outputs(c);
      moe.combine_send(c);
      moe.combine(a, std::span{out}.first(mine[0]->tokens.size()));
      moe.combine_recv(b, std::span{out}.first(mine[1]->tokens.size()));
      moe.combine_recv(c, std::span{out}.first(mine[2]->tokens.size()));
    });
    comm.members()->listeners().remove(events);
    test::expect((events.lost() != 0) == records, "events, more than the ring keeps");
  });
  CHECK(worst_status == 0);
}

/// A batch in slots that nobody combines, which the next dispatch gives up.
template <class Group>
void check_no_allocation_uncombined(std::size_t ranks) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [](auto& comm) {
    peerbus::moe::exchange moe{comm, config, peerbus::codec::int8_per_token{},
                               peerbus::moe::slots{}};
    const auto inputs = make_inputs(comm.size(), comm.rank().index());
    std::size_t next = 0;
    expect_no_allocation([&] {
      const oracle::input& mine = inputs[next++ % inputs.size()];
      (void)moe.dispatch(mine.tokens, {mine.experts, mine.weights});
    });
  });
  CHECK(worst_status == 0);
}

/// Two threads of each rank on one operation, both counted.
template <class Group>
void check_no_allocation_in_lanes(std::size_t ranks) {
  CAPTURE(ranks);
  const int worst_status = Group::run(ranks, [](auto& comm) {
    peerbus::moe::exchange moe{comm, config, peerbus::codec::int8_per_token{}};
    const auto inputs = make_inputs(comm.size(), comm.rank().index());
    std::vector<peerbus::bf16> out(config.max_tokens * config.hidden);
    const auto carry = [&](peerbus::moe::lane as) {
      std::size_t next = 4;
      expect_no_allocation([&] {
        const oracle::input& mine = inputs[next++ % inputs.size()];
        const auto begun = moe.dispatch_send(mine.tokens, {mine.experts, mine.weights}, {.as = as});
        const auto got = moe.dispatch_recv(begun, {.as = as});
        if (as.index == 0) fill_outputs(got);
        moe.combine_send(got, {.as = as});
        moe.combine_recv(got, std::span{out}.first(mine.tokens.size()), {.as = as});
      });
    };
    std::exception_ptr problem;
    std::thread other{[&] {
      try {
        carry({1, 2});
      } catch (...) {
        problem = std::current_exception();
      }
    }};
    carry({0, 2});
    other.join();
    if (problem) std::rethrow_exception(problem);
  });
  CHECK(worst_status == 0);
}

}  // namespace

TEST_CASE("the counter counts") {
  const std::uint64_t before = allocations;
  const std::vector<int> vector(100);
  CHECK(allocations == before + 1);
}

TEST_CASE("dispatch, combine and barrier allocate nothing") {
  using peerbus::codec::int8_per_token;
  using loopback = test::threads_over<peerbus::loopback>;
  using indirect = test::threads_over<test::indirect<peerbus::loopback>>;
  using staged = test::any_over<peerbus::any_transport, indirect>;
  using unified_bus = test::processes_over<peerbus::unified_bus>;
  using processes = test::any_over<peerbus::any_transport, unified_bus>;
  for (const std::size_t n : {1U, 2U, 4U, 5U}) {
    check_no_allocation<loopback, int8_per_token>(n);
    check_no_allocation<loopback, peerbus::codec::bf16>(n);
    check_no_allocation<staged, int8_per_token>(n);
    check_no_allocation<processes, int8_per_token>(n);
  }
}

TEST_CASE("halves of operations with three batches in flight allocate nothing, in any layout") {
  namespace moe = peerbus::moe;
  using loopback = test::threads_over<peerbus::loopback>;
  using staged = test::threads_over<test::indirect<peerbus::loopback>>;
  for (const std::size_t n : {1U, 2U, 4U, 5U}) {
    check_no_allocation_in_flight<loopback>(n, moe::compact{.alignment = 8, .zero_gaps = true});
    check_no_allocation_in_flight<loopback>(n, moe::padded{});
    check_no_allocation_in_flight<loopback>(n, moe::padded{}, true);
    check_no_allocation_in_flight<loopback>(n, moe::rank_major{});
    check_no_allocation_in_flight<loopback>(n, moe::slots{});
    check_no_allocation_in_flight<staged>(n, moe::padded{});
    check_no_allocation_in_flight<staged>(n, moe::rank_major{});
    check_no_allocation_in_flight<staged>(n, moe::expert_slots{});
  }
}

TEST_CASE("batches in slots that are not combined allocate nothing") {
  for (const std::size_t n : {1U, 3U})
    check_no_allocation_uncombined<test::threads_over<peerbus::loopback>>(n);
}

TEST_CASE("lanes allocate nothing") {
  for (const std::size_t n : {1U, 2U}) {
    check_no_allocation_in_lanes<test::threads_over<peerbus::loopback>>(n);
    check_no_allocation_in_lanes<test::threads_over<test::background<peerbus::loopback>>>(n);
  }
}

}  // namespace allocation_test
