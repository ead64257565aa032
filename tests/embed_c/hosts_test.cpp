// SPDX-License-Identifier: MIT
#include <peerbus.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/local.hpp>
#include <peerbus/core/deadline.hpp>

#include "embed_c/ranks_of_c.hpp"

// Which transport a communicator has, and what is refused where hosts do not share memory.

namespace hosts_test {

using embed_c::fails;
using embed_c::join_hosts;
using embed_c::kind;
using embed_c::ok;
using test::expect;
using test::expect_equal;

namespace {

peerbus_comm_options over(std::int32_t transport) {
  peerbus_comm_options options{};
  options.struct_bytes = sizeof options;
  options.transport = transport;
  return options;
}

std::string_view transport_of(peerbus_comm* comm) { return peerbus_comm_transport(comm); }

/// Calls `rank(boot)` on processes, if there is a network.
template <class Rank>
void on_processes(std::size_t ranks, Rank rank) {
  if (embed_c::has_hosts)
    CHECK(peerbus::run_local(ranks, [&](peerbus::bootstrap& boot) { rank(boot); }) == 0);
}

/// Returns a port that nobody listens at, the same on all ranks.
std::uint32_t port_of_rank_0(peerbus::bootstrap& boot) {
  std::uint16_t port = embed_c::free_port();
  const auto* const bytes = reinterpret_cast<const std::byte*>(&port);
  const auto given = boot.allgather({.bytes = {bytes, bytes + sizeof port}, .fd = {}},
                                    peerbus::deadline::never(), "a port");
  std::memcpy(&port, given.front().bytes.data(), sizeof port);
  return port;
}

/// Bytes that a rank puts.
std::vector<unsigned char> pattern_of(std::uint64_t rank, std::size_t bytes) {
  std::vector<unsigned char> values(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    values[i] = static_cast<unsigned char>(i * 7 + i / 251 + 13 * rank);
  return values;
}

}  // namespace

TEST_CASE("the automatic transport is shared memory on one host, and planes on several") {
  on_processes(3, [](peerbus::bootstrap& boot) {
    const std::uint64_t rank = boot.rank().index();
    peerbus_comm* comm = nullptr;
    ok(join_hosts(boot, 0, nullptr, &comm), "one host");
    expect_equal(transport_of(comm), "unified_bus", "the transport");
    for (std::uint64_t peer = 0; peer < 3; ++peer)
      expect_equal(peerbus_comm_is_near(comm, peer), 1, "near");
    ok(peerbus_comm_destroy(&comm), "destroy");

    ok(join_hosts(boot, rank / 2, nullptr, &comm), "two hosts");
    expect_equal(transport_of(comm), "planes", "the transport");
    for (std::uint64_t peer = 0; peer < 3; ++peer)
      expect_equal(peerbus_comm_is_near(comm, peer), rank / 2 == peer / 2 ? 1 : 0, "near");
    expect_equal(peerbus_comm_is_near(comm, 3), 0, "a rank that does not exist");
    peerbus_window* window = nullptr;
    ok(peerbus_window_create(comm, 8, 0, 0, &window), "window");
    for (std::uint64_t peer = 0; peer < 3; ++peer)
      expect_equal(peerbus_window_part(window, peer) != nullptr, rank / 2 == peer / 2, "a part");
    peerbus_window_destroy(&window);

    // Each host's ranks share memory again.
    const std::array<std::uint64_t, 2> first{0, 1};
    peerbus_comm* part = nullptr;
    ok(rank == 2 ? peerbus_comm_subgroup(comm, &rank, 1, nullptr, &part)
                 : peerbus_comm_subgroup(comm, first.data(), 2, nullptr, &part),
       "subgroup");
    expect_equal(transport_of(part), "unified_bus", "the transport of a host");
    ok(peerbus_comm_barrier(part, 0), "barrier");
    ok(peerbus_comm_destroy(&part), "destroy");
    ok(peerbus_comm_destroy(&comm), "destroy");
  });
  CHECK(embed_c::run(2, kind::threads, [](peerbus_comm* comm) {
          expect_equal(transport_of(comm), "loopback", "the transport of threads");
          expect_equal(peerbus_comm_is_near(comm, 1), 1, "near");
        }) == 0);
  CHECK(peerbus_comm_is_near(nullptr, 0) == 0);
  CHECK(transport_of(nullptr).empty());
}

TEST_CASE("a network between all ranks, where no rank has another's memory") {
  const peerbus_comm_options options = over(PEERBUS_FABRIC);
  on_processes(2, [&](peerbus::bootstrap& boot) {
    peerbus_comm* comm = nullptr;
    ok(join_hosts(boot, 0, &options, &comm), "fabric");
    expect_equal(transport_of(comm), "fabric", "the transport");
    expect_equal(peerbus_comm_is_near(comm, boot.rank().index()), 1, "the rank itself");
    expect_equal(peerbus_comm_is_near(comm, 1 - boot.rank().index()), 0, "the other");
    ok(peerbus_comm_barrier(comm, 0), "barrier");
    ok(peerbus_comm_destroy(&comm), "destroy");
  });
}

TEST_CASE("puts and gets of the program's own memory, more than the stage holds") {
  CHECK(embed_c::run(3, kind::hosts, [](peerbus_comm* comm) {
          constexpr std::size_t bytes = (std::size_t{5} << 19U) + 12345;
          const std::uint64_t rank = peerbus_comm_rank(comm);
          const std::uint64_t next = (rank + 1) % 3;
          const std::uint64_t before = (rank + 2) % 3;
          peerbus_window* window = nullptr;
          ok(peerbus_window_create(comm, bytes + 8, 2, 0, &window), "create");
          auto* const own = static_cast<unsigned char*>(peerbus_window_part(window, rank));
          for (std::uint64_t round = 1; round <= 3; ++round) {
            auto source = pattern_of(rank + round, bytes);
            if (round == 1) {
              ok(peerbus_window_put(window, next, 8, source.data(), bytes), "put");
              ok(peerbus_window_flush(window, next), "flush");
              std::fill(source.begin(), source.end(), 0);
              ok(peerbus_window_signal(window, next, 0, round), "signal");
            } else {
              ok(peerbus_window_put_signal(window, next, 8, source.data(), bytes, 0, round),
                 "put_signal");
            }
            ok(peerbus_window_wait(window, 0, round, before, 0), "wait");
            const auto expected = pattern_of(before + round, bytes);
            expect(std::memcmp(own + 8, expected.data(), bytes) == 0, "what was put");
            ok(peerbus_comm_barrier(comm, 0), "barrier");
            std::vector<unsigned char> read(bytes);
            ok(peerbus_window_get(window, next, 8, read.data(), bytes), "get");
            ok(peerbus_window_flush(window, next), "flush");
            expect(read == pattern_of(rank + round, bytes), "what was read");
            ok(peerbus_comm_barrier(comm, 0), "barrier");
          }
          // From a window it needs no stage.
          ok(peerbus_window_put_signal(window, next, 0, own + 8, 8, 1, 1), "put from the window");
          ok(peerbus_window_wait(window, 1, 1, before, 0), "wait");
          expect_equal(own[0], pattern_of((before + 2) % 3 + 3, 1)[0], "its byte");
          fails(peerbus_window_put(window, next, 16, own, bytes), PEERBUS_OUT_OF_RANGE,
                "offset 16");
          peerbus_window_destroy(&window);
        }) == 0);
}

TEST_CASE("transports that cannot be, or differ between ranks, are refused on all") {
  on_processes(3, [](peerbus::bootstrap& boot) {
    const bool is_last = boot.rank().index() == 2;
    peerbus_comm* comm = nullptr;
    peerbus_comm_options options = over(PEERBUS_UNIFIED_BUS);
    fails(join_hosts(boot, is_last ? 1 : 0, &options, &comm), PEERBUS_UNSUPPORTED,
          "unified_bus needs all ranks on one host");
    expect(comm == nullptr, "no communicator");
    options.transport = is_last ? 6 : PEERBUS_UNIFIED_BUS;
    fails(join_hosts(boot, 0, &options, &comm), PEERBUS_INVALID_ARGUMENT,
          "options.transport is 6, expected 0 to 5");
    options.transport = is_last ? PEERBUS_FABRIC : PEERBUS_PLANES;
    fails(join_hosts(boot, 0, &options, &comm), PEERBUS_MISMATCH, "fabric");
    options.transport = PEERBUS_PLANES;
    options.provider = is_last ? "verbs" : "tcp";
    fails(join_hosts(boot, is_last ? 1 : 0, &options, &comm), PEERBUS_MISMATCH, "provider");
    options.provider = "nosuch";
    fails(join_hosts(boot, is_last ? 1 : 0, &options, &comm), PEERBUS_UNSUPPORTED, "nosuch");
    options.provider = nullptr;
    options.device = "nosuch0";
    fails(join_hosts(boot, is_last ? 1 : 0, &options, &comm), PEERBUS_INVALID_ARGUMENT, "nosuch0");
    // The ranks are in step.
    ok(join_hosts(boot, is_last ? 1 : 0, nullptr, &comm), "join");
    ok(peerbus_comm_barrier(comm, 0), "barrier");
    ok(peerbus_comm_destroy(&comm), "destroy");
  });
}

TEST_CASE("a meeting that fails") {
  peerbus_meeting meeting{};
  meeting.struct_bytes = sizeof meeting;
  meeting.size = 2;
  peerbus_comm* comm = nullptr;
  fails(peerbus_comm_over(nullptr, nullptr, &comm), PEERBUS_INVALID_ARGUMENT, "meeting is NULL");
  fails(peerbus_comm_over(&meeting, nullptr, &comm), PEERBUS_INVALID_ARGUMENT,
        "all_gather is NULL");
  meeting.all_gather = [](void*, const void*, void*, std::uint64_t) -> std::int32_t { return 7; };
  fails(peerbus_comm_over(&meeting, nullptr, &comm), PEERBUS_SYSTEM,
        "meeting.all_gather returned 7, expected 0");
  meeting.rank = 2;
  fails(peerbus_comm_over(&meeting, nullptr, &comm), PEERBUS_INVALID_ARGUMENT, "rank is not below");
  peerbus_place place{};
  place.struct_bytes = sizeof place;
  place.size = 1;
  place.host = "a host";
  fails(peerbus_comm_at(&place, nullptr, &comm), PEERBUS_INVALID_ARGUMENT,
        "place.host needs place.secret");
  place.secret = "too short";
  if (embed_c::has_hosts)
    fails(peerbus_comm_at(&place, nullptr, &comm), PEERBUS_INVALID_ARGUMENT, "secret");
}

TEST_CASE("processes that meet at an address with a secret") {
  on_processes(3, [](peerbus::bootstrap& boot) {
    const std::string host = "host " + std::to_string(boot.rank().index() % 2);
    peerbus_place place{};
    place.struct_bytes = sizeof place;
    place.rank = boot.rank().index();
    place.size = boot.size();
    place.port = port_of_rank_0(boot);
    place.job = "hosts_test";
    place.secret = "nobody can guess this";
    place.host = host.c_str();
    peerbus_comm* comm = nullptr;
    ok(peerbus_comm_at(&place, nullptr, &comm), "comm_at");
    expect_equal(transport_of(comm), "planes", "the transport");
    expect_equal(peerbus_comm_is_near(comm, 2), boot.rank().index() == 1 ? 0 : 1, "near");
    ok(peerbus_comm_barrier(comm, 0), "barrier");
    ok(peerbus_comm_destroy(&comm), "destroy");
  });
}

}  // namespace hosts_test
