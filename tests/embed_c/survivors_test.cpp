// SPDX-License-Identifier: MIT
#include <peerbus.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/core/bf16.hpp>

#include "embed_c/ranks_of_c.hpp"
#include "support/ranks.hpp"
#include "support/tally.hpp"

namespace embed_c {
namespace {

using peerbus::bf16;
using test::expect_equal;

constexpr std::size_t hidden = 64;

/// A team and channels of four ranks, of which rank 0 is gone, go on.
void check_collectives_go_on(std::uint64_t rank, peerbus_team* team, peerbus_channels* channels) {
  const auto own = static_cast<float>(rank);
  float sum = 0;
  const auto add = [&] {
    return peerbus_all_reduce(team, &own, &sum, 1, PEERBUS_DTYPE_F32, PEERBUS_SUM, 0);
  };
  const std::uint64_t after = 1 + rank % 3;
  const std::uint64_t before = 1 + (rank + 1) % 3;
  float got = 0;
  const std::array<peerbus_transfer, 2> both{
      peerbus_transfer{1, PEERBUS_DTYPE_F32, after, 1, &own, nullptr},
      peerbus_transfer{0, PEERBUS_DTYPE_F32, before, 1, nullptr, &got}};
  const auto pass_on = [&] {
    return peerbus_batch_send_recv(channels, both.data(), both.size(), 0);
  };
  fails(add(), PEERBUS_VIEW_CHANGED, "view 1 of 3 ranks");
  ok(peerbus_team_resume(team, 0), "resume of the team");
  fails(peerbus_team_resume(team, 0), PEERBUS_INVALID_ARGUMENT, "view 1");
  expect_equal(peerbus_team_rank(team), rank - 1, "rank in the team");
  expect_equal(peerbus_team_size(team), std::uint64_t{3}, "ranks of the team");
  ok(add(), "all_reduce");
  expect_equal(sum, 6.0F, "sum of those who are left");
  fails(pass_on(), PEERBUS_VIEW_CHANGED, "view 1 of 3 ranks");
  ok(peerbus_channels_resume(channels, 0), "resume of the channels");
  ok(pass_on(), "batch_send_recv");
  expect_equal(got, static_cast<float>(before), "the message of the rank before");
}

/// Four ranks, of which the first is killed after a dispatch.
void go_on(peerbus_comm* comm) {
  const std::uint64_t rank = peerbus_comm_rank(comm);
  peerbus_exchange_config config{};
  config.struct_bytes = sizeof config;
  config.experts = 4;
  config.hidden = hidden;
  config.top_k = 2;
  config.max_tokens = 1;
  config.in_flight = 1;
  peerbus_exchange* exchange = nullptr;
  ok(peerbus_exchange_create(comm, &config, 0, &exchange), "exchange");
  const std::vector<bf16> token(hidden, bf16{1.0F});
  const std::array<std::int64_t, 2> experts{0, static_cast<std::int64_t>(1 + rank % 3)};
  const std::array<float, 2> weights{0.75F, 0.25F};
  std::vector<bf16> out(hidden);
  peerbus_dispatch_args sent{};
  sent.struct_bytes = sizeof sent;
  sent.expert_id_bits = 64;
  sent.count = 1;
  sent.tokens = token.data();
  sent.experts = experts.data();
  sent.weights = weights.data();
  peerbus_combine_args sum{};
  sum.struct_bytes = sizeof sum;
  sum.count = 1;
  sum.out = out.data();
  peerbus_received received{};
  received.struct_bytes = sizeof received;
  const auto dispatch = [&] {
    ok(peerbus_dispatch(exchange, &sent, &received), "dispatch");
    auto* const outputs = static_cast<bf16*>(received.outputs);
    for (std::uint64_t block = 0; block < received.blocks; ++block)
      for (std::uint64_t source = 0; source < received.ranks; ++source) {
        const std::uint64_t place = block * received.ranks + source;
        for (std::uint64_t i = 0; i < received.counts[place] * hidden; ++i)
          outputs[received.first_rows[place] * hidden + i] = bf16{4.0F};
      }
  };
  const auto expect_sum = [&](float wanted) {
    for (const bf16 value : out) expect_equal(static_cast<float>(value), wanted, "a sum");
  };
  peerbus_team* team = nullptr;
  ok(peerbus_team_create(comm, nullptr, 0, &team), "team");
  peerbus_channels* channels = nullptr;
  ok(peerbus_channels_create(comm, nullptr, 0, &channels), "channels");
  dispatch();
  ok(peerbus_comm_barrier(comm, 0), "barrier");
  fails(peerbus_comm_continue_without(comm, &rank, 1, 0), PEERBUS_INVALID_ARGUMENT, "other ranks");
  if (rank == 0) ::raise(SIGKILL);
  fails(peerbus_combine(exchange, received.ticket, &sum), PEERBUS_PEER_DEAD, "rank 0 died");
  expect_equal(peerbus_comm_rank_state(comm, 0), 2, "state of rank 0");
  peerbus_last_seen seen{};
  seen.struct_bytes = sizeof seen;
  ok(peerbus_comm_last_seen(comm, 0, &seen), "last_seen");
  expect_equal(seen.is_known, 1, "rank 0 seen");
  expect_equal(std::string{seen.operation}, "barrier", "operation of rank 0");
  expect_equal(std::string{seen.phase}, "", "phase of rank 0");
  expect_equal(seen.number, std::uint64_t{1}, "barrier of rank 0");
  expect_equal(seen.is_over, 1, "end of the wait of rank 0");
  test::expect(seen.heard_ns >= 0 && seen.since_ns >= seen.heard_ns, "times of rank 0");
  fails(peerbus_comm_last_seen(comm, 4, &seen), PEERBUS_INVALID_ARGUMENT, "below the number");
  expect_equal(peerbus_comm_is_member(comm, 0), 1, "membership of rank 0");
  constexpr std::uint64_t gone = 0;
  if (rank == 1)
    ok(peerbus_comm_continue_without(comm, &gone, 1, 0), "continue without");
  else
    ok(peerbus_comm_continue(comm, 0), "continue");
  expect_equal(peerbus_comm_view(comm), std::uint64_t{1}, "view");
  expect_equal(peerbus_comm_is_member(comm, 0), 0, "membership of rank 0");
  expect_equal(peerbus_comm_is_member(comm, 3), 1, "membership of rank 3");
  fails(peerbus_dispatch(exchange, &sent, &received), PEERBUS_VIEW_CHANGED, "view 1 of 3 ranks");
  fails(peerbus_exchange_resume(exchange, 3, 0, nullptr), PEERBUS_INVALID_ARGUMENT, "lost");
  peerbus_completed completed{};
  ok(peerbus_exchange_resume(exchange, PEERBUS_LOST_RENORMALISED, 0, &completed), "resume");
  expect_equal(completed.received, std::uint64_t{1}, "batches that all have received");
  expect_equal(completed.combined, std::uint64_t{0}, "batches that all have combined");
  ok(peerbus_combine(exchange, received.ticket, &sum), "combine");
  expect_sum(4.0F);  // The weight of the slot that is left has grown to 1.
  dispatch();
  ok(peerbus_combine(exchange, received.ticket, &sum), "combine");
  expect_sum(4.0F);
  ok(peerbus_comm_barrier(comm, 0), "barrier");
  check_collectives_go_on(rank, team, channels);
  peerbus_team_destroy(&team);
  peerbus_channels_destroy(&channels);
  peerbus_comm* rest = nullptr;
  ok(peerbus_comm_survivors(comm, nullptr, &rest), "survivors");
  expect_equal(peerbus_comm_size(rest), std::uint64_t{3}, "survivors");
  expect_equal(peerbus_comm_rank(rest), rank - 1, "rank among the survivors");
  ok(peerbus_comm_barrier(rest, 0), "barrier of the survivors");
  ok(peerbus_comm_destroy(&rest), "destroy");
  peerbus_exchange_destroy(&exchange);
}

/// Goes on without those that have died. If half of the ranks may live, this vouches that they do
/// not.
void continue_without_the_dead(peerbus_comm* comm) {
  const peerbus_code code = peerbus_comm_continue(comm, 0);
  if (code != PEERBUS_UNREACHABLE) return ok(code, "continue");
  std::vector<std::uint64_t> dead;
  for (std::uint64_t peer = 0; peer < peerbus_comm_size(comm); ++peer)
    if (peerbus_comm_rank_state(comm, peer) == 2) dead.push_back(peer);
  ok(peerbus_comm_continue_without(comm, dead.data(), dead.size(), 0), "continue without");
}

/// One of four ranks, of which the second is killed, and the first, by which the others meet,
/// `delay` after they begin to go on.
void lose_two(peerbus_comm* now, std::chrono::microseconds delay, const test::tally& met) {
  const std::uint64_t rank = peerbus_comm_rank(now);
  ok(peerbus_comm_barrier(now, 0), "barrier");
  met.add();
  while (met.count() < 4) std::this_thread::yield();
  if (rank == 1) ::raise(SIGKILL);
  std::thread end;
  while (peerbus_comm_size(now) > 2) {
    peerbus_code code = peerbus_comm_barrier(now, 0);
    while (code != PEERBUS_OK) {
      fails(code, PEERBUS_PEER_DEAD, "");
      continue_without_the_dead(now);
      if (rank == 0 && !end.joinable())
        end = std::thread{[delay] {
          std::this_thread::sleep_for(delay);
          ::raise(SIGKILL);
        }};
      peerbus_comm* rest = nullptr;
      code = peerbus_comm_survivors(now, nullptr, &rest);
      if (code != PEERBUS_OK) continue;
      ok(peerbus_comm_destroy(&now), "destroy");
      now = rest;
    }
  }
  expect_equal(peerbus_comm_size(now), std::uint64_t{2}, "those who are left");
  ok(peerbus_comm_barrier(now, 0), "barrier of those who are left");
  ok(peerbus_comm_destroy(&now), "destroy");
}

/// A rank of a group of three that begins with two, and its third rank, which comes later.
void grow(std::uint64_t rank) {
  peerbus_place place{};
  place.struct_bytes = sizeof place;
  place.rank = rank;
  place.size = 3;
  const std::string job = "embed_c/" + std::to_string(::getppid());
  place.job = job.c_str();
  peerbus_comm* comm = nullptr;
  if (rank == 1) {
    ok(peerbus_comm_join(&place, nullptr, &comm), "join");
  } else {
    constexpr std::array<std::uint64_t, 2> present{0, 2};
    const std::uint64_t other = 2 - rank;
    fails(peerbus_comm_with_vacancies(&place, &other, 1, nullptr, &comm), PEERBUS_INVALID_ARGUMENT,
          "ranks are not ascending, below place.size and with place.rank among them");
    peerbus_comm* first = nullptr;
    ok(peerbus_comm_with_vacancies(&place, present.data(), present.size(), nullptr, &first),
       "with vacancies");
    expect_equal(peerbus_comm_is_member(first, 1), 0, "membership of rank 1");
    place.secret = "0123456789abcdef";
    fails(peerbus_comm_admit(first, &place, nullptr, &comm), PEERBUS_INVALID_ARGUMENT,
          "on one host");
    place.secret = nullptr;
    while (comm == nullptr) {
      ok(peerbus_comm_admit(first, &place, nullptr, &comm), "admit");
      expect_equal(std::string{peerbus_comm_refusal(first)}, std::string{}, "refusal");
    }
    ok(peerbus_comm_destroy(&first), "destroy");
  }
  expect_equal(peerbus_comm_view(comm), std::uint64_t{0}, "view");
  expect_equal(peerbus_comm_is_member(comm, 1), 1, "membership of rank 1");
  ok(peerbus_comm_barrier(comm, 0), "barrier");
  ok(peerbus_comm_destroy(&comm), "destroy");
}

/// The same over TCP, on two pretended hosts.
void grow_over_tcp(std::uint64_t rank, std::uint16_t port) {
  const std::string host = "host " + std::to_string(rank % 2);
  peerbus_place place{};
  place.struct_bytes = sizeof place;
  place.rank = rank;
  place.size = 3;
  place.port = port;
  place.secret = "0123456789abcdef";
  place.host = host.c_str();
  peerbus_comm_options options{};
  options.struct_bytes = sizeof options;
  options.transport = PEERBUS_PLANES;
  peerbus_comm* comm = nullptr;
  if (rank == 0) {
    place.address = "127.0.0.2,127.0.0.1";
    ok(peerbus_comm_join(&place, &options, &comm), "join");
  } else {
    constexpr std::array<std::uint64_t, 2> present{1, 2};
    peerbus_comm* first = nullptr;
    ok(peerbus_comm_with_vacancies(&place, present.data(), present.size(), &options, &first),
       "with vacancies");
    expect_equal(peerbus_comm_size(first), std::uint64_t{2}, "ranks");
    while (comm == nullptr) {
      ok(peerbus_comm_admit(first, &place, nullptr, &comm), "admit");
      expect_equal(std::string{peerbus_comm_refusal(first)}, std::string{}, "refusal");
    }
    ok(peerbus_comm_destroy(&first), "destroy");
  }
  expect_equal(peerbus_comm_rank(comm), rank, "rank");
  expect_equal(peerbus_comm_size(comm), std::uint64_t{3}, "ranks");
  ok(peerbus_comm_barrier(comm, 0), "barrier");
  ok(peerbus_comm_destroy(&comm), "destroy");
}

/// Calls `body(rank)` in `ranks` processes, of which those below `victims` are killed.
template <class Body>
void run_each(std::uint64_t ranks, std::uint64_t victims, Body body) {
  std::vector<pid_t> children;
  for (std::uint64_t rank = 0; rank < ranks; ++rank) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    int status = 0;
    try {
      body(rank);
    } catch (const std::exception& problem) {
      std::fprintf(stderr, "rank %d: %s\n", static_cast<int>(rank), problem.what());
      status = 1;
    }
    ::_exit(status);
  }
  for (std::uint64_t rank = 0; rank < ranks; ++rank) {
    CAPTURE(rank);
    int status = -1;
    CHECK(::waitpid(children[rank], &status, 0) == children[rank]);
    CHECK(status == (rank < victims ? SIGKILL : 0));
  }
}

}  // namespace

TEST_CASE("ranks of C take in another") {
  run_each(3, 0, grow);
  if (has_hosts)
    run_each(3, 0, [port = free_port()](std::uint64_t rank) { grow_over_tcp(rank, port); });
  peerbus_comm* comm = nullptr;
  CHECK(peerbus_comm_admit(nullptr, nullptr, nullptr, &comm) == PEERBUS_INVALID_ARGUMENT);
  CHECK(peerbus_comm_join(nullptr, nullptr, &comm) == PEERBUS_INVALID_ARGUMENT);
  CHECK(peerbus_comm_with_vacancies(nullptr, nullptr, 0, nullptr, &comm) ==
        PEERBUS_INVALID_ARGUMENT);
  CHECK(std::string{peerbus_comm_refusal(nullptr)}.empty());
}

TEST_CASE("a rank of C dies at any moment while the others make a communicator") {
  constexpr std::array<std::uint64_t, 4> all{0, 1, 2, 3};
  for (int step = 0; step < 8; ++step)
    for (const bool has_one_host : {true, false}) {
      CAPTURE(step);
      CAPTURE(has_one_host);
      if (!has_one_host && !has_hosts) continue;
      const std::uint16_t port = free_port();
      const test::tally met;
      run_each(4, 2, [&](std::uint64_t rank) {
        const std::string host = "host " + std::to_string(rank % 2);
        peerbus_place place{};
        place.struct_bytes = sizeof place;
        place.rank = rank;
        place.size = all.size();
        place.port = port;
        place.secret = has_one_host ? nullptr : "0123456789abcdef";
        place.host = has_one_host ? nullptr : host.c_str();
        peerbus_comm* comm = nullptr;
        ok(peerbus_comm_with_vacancies(&place, all.data(), all.size(), nullptr, &comm), "meet");
        lose_two(comm, std::chrono::microseconds{step * (has_one_host ? 400 : 5'000)}, met);
      });
    }
}

TEST_CASE("ranks of C go on without one that was killed") {
  const test::tally ended;
  CHECK(run(4, kind::processes, [&](peerbus_comm* comm) {
          go_on(comm);
          ended.add();
        }) == 128 + SIGKILL);
  CHECK(ended.count() == 3);
  CHECK(peerbus_comm_view(nullptr) == 0);
  CHECK(peerbus_team_rank(nullptr) == 0);
  CHECK(peerbus_team_size(nullptr) == 0);
  CHECK(peerbus_team_resume(nullptr, 0) == PEERBUS_INVALID_ARGUMENT);
  CHECK(peerbus_channels_resume(nullptr, 0) == PEERBUS_INVALID_ARGUMENT);
  CHECK(peerbus_comm_is_member(nullptr, 0) == 0);
  CHECK(peerbus_comm_rank_state(nullptr, 0) == -1);
  CHECK(peerbus_comm_last_seen(nullptr, 0, nullptr) == PEERBUS_INVALID_ARGUMENT);
  CHECK(peerbus_comm_continue(nullptr, 0) == PEERBUS_INVALID_ARGUMENT);
}

}  // namespace embed_c
