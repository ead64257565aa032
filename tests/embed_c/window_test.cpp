// SPDX-License-Identifier: MIT
#include <peerbus.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>

#include <doctest/doctest.h>

#include "embed_c/ranks_of_c.hpp"

namespace window_test {

using embed_c::fails;
using embed_c::kind;
using embed_c::ok;
using embed_c::second;
using test::expect;
using test::expect_equal;

namespace {

void check_window(peerbus_comm* comm) {
  const std::uint64_t rank = peerbus_comm_rank(comm);
  const std::uint64_t size = peerbus_comm_size(comm);
  const std::uint64_t next = (rank + 1) % size;
  const std::uint64_t before = (rank + size - 1) % size;
  peerbus_window* window = nullptr;
  ok(peerbus_window_create(comm, 64, 2, 0, &window), "create");
  expect_equal(peerbus_window_bytes(window), 64U, "bytes");
  for (std::uint64_t round = 1; round <= 3; ++round) {
    const std::uint64_t letter = 100 * rank + round;
    ok(peerbus_window_put_signal(window, next, 8, &letter, sizeof letter, 1, round), "put_signal");
    ok(peerbus_window_wait(window, 1, round, before, 0), "wait");
    std::uint64_t come = 0;
    std::memcpy(&come, static_cast<char*>(peerbus_window_part(window, rank)) + 8, sizeof come);
    expect_equal(come, 100 * before + round, "the letter");
    ok(peerbus_comm_barrier(comm, 0), "barrier");
  }
  std::uint64_t earlier = 0;
  std::uint64_t sum = 5 * size;
  const bool over_network = std::string_view{peerbus_comm_transport(comm)} == "planes";
  if (over_network) {  // libfabric's tcp adds nothing.
    fails(peerbus_window_fetch_add(window, 0, 16, 1, &earlier), PEERBUS_UNSUPPORTED, "fetch_add");
    if (rank == 0) std::memcpy(static_cast<char*>(peerbus_window_part(window, 0)) + 16, &sum, 8);
  }
  for (int i = 0; i < 5 && !over_network; ++i)
    ok(peerbus_window_fetch_add(window, 0, 16, 1, &earlier), "fetch_add");
  ok(peerbus_comm_barrier(comm, 0), "barrier");
  sum = 0;
  ok(peerbus_window_get(window, 0, 16, &sum, sizeof sum), "get");
  ok(peerbus_window_flush(window, 0), "flush");
  expect_equal(sum, 5 * size, "what was added");
  expect_equal(peerbus_window_signal_value(window, 1), 3U, "signal 1");
  ok(peerbus_window_signal(window, next, 0, 7), "signal");
  ok(peerbus_window_wait(window, 0, 7, PEERBUS_ANY_RANK, 20 * second), "wait");

  // What does not exist.
  fails(peerbus_window_put(window, size, 0, &sum, 8), PEERBUS_OUT_OF_RANGE, "peer");
  fails(peerbus_window_put(window, UINT64_MAX, 0, &sum, 8), PEERBUS_OUT_OF_RANGE, "peer");
  fails(peerbus_window_put(window, 0, 60, &sum, 8), PEERBUS_OUT_OF_RANGE, "offset 60, bytes 8");
  fails(peerbus_window_put(window, 0, 0, nullptr, 8), PEERBUS_INVALID_ARGUMENT, "source is NULL");
  fails(peerbus_window_signal(window, 0, 2, 1), PEERBUS_OUT_OF_RANGE, "signal 2");
  fails(peerbus_window_signal(window, 0, UINT64_MAX, 1), PEERBUS_OUT_OF_RANGE, "2 signals");
  fails(peerbus_window_wait(window, 2, 1, PEERBUS_ANY_RANK, 1), PEERBUS_OUT_OF_RANGE, "signal");
  fails(peerbus_window_wait(window, 0, 1, size, 1), PEERBUS_OUT_OF_RANGE, "rank");
  fails(peerbus_window_wait(window, 0, 8, before, 1), PEERBUS_TIMED_OUT,
        "expected at least 8, seen 7");
  expect(peerbus_window_part(window, size) == nullptr, "no part of a rank that does not exist");
  expect_equal(peerbus_window_signal_value(window, 2), 0U, "a signal that does not exist");

  // All of this has not disturbed the group.
  ok(peerbus_comm_barrier(comm, 0), "barrier");
  peerbus_window_destroy(&window);
  expect(window == nullptr, "a destroyed handle is null");
  peerbus_window_destroy(&window);
  peerbus_window_destroy(nullptr);
}

}  // namespace

TEST_CASE("versions and texts") {
  CHECK(peerbus_version() == (PEERBUS_C_MAJOR << 16U | PEERBUS_C_MINOR << 8U | PEERBUS_C_PATCH));
  CHECK(std::string_view{peerbus_code_text(PEERBUS_TIMED_OUT)} == "timed out");
  CHECK(std::string_view{peerbus_code_text(PEERBUS_INTERRUPTED)} == "interrupted");
  CHECK(std::string_view{peerbus_code_text(-5)} == "unknown error code");
}

TEST_CASE("a window through C") {
  for (const std::uint64_t n : {1U, 2U, 5U})
    for (const kind how : {kind::threads, kind::processes, kind::hosts})
      CHECK(embed_c::run(n, how, check_window) == 0);
}

TEST_CASE("handles and structures that cannot be used") {
  peerbus_comm* comm = nullptr;
  peerbus_window* window = nullptr;
  fails(peerbus_comm_barrier(nullptr, 0), PEERBUS_INVALID_ARGUMENT, "communicator is NULL");
  fails(peerbus_window_create(nullptr, 8, 0, 0, &window), PEERBUS_INVALID_ARGUMENT,
        "communicator is NULL");
  fails(peerbus_window_create(nullptr, 8, 0, 0, nullptr), PEERBUS_INVALID_ARGUMENT,
        "window is NULL");
  fails(peerbus_window_put(nullptr, 0, 0, &comm, 1), PEERBUS_INVALID_ARGUMENT, "window is NULL");
  CHECK(peerbus_comm_rank(nullptr) == 0);
  CHECK(peerbus_comm_size(nullptr) == 0);
  CHECK(peerbus_comm_destroy(nullptr) == PEERBUS_OK);
  CHECK(peerbus_comm_destroy(&comm) == PEERBUS_OK);

  peerbus_place place{};
  fails(peerbus_comm_at(nullptr, nullptr, &comm), PEERBUS_INVALID_ARGUMENT, "place is NULL");
  fails(peerbus_comm_at(&place, nullptr, &comm), PEERBUS_INVALID_ARGUMENT,
        "place.struct_bytes is 0");
  place.struct_bytes = sizeof place;
  fails(peerbus_comm_at(&place, nullptr, &comm), PEERBUS_INVALID_ARGUMENT, "world of 0 ranks");
  place.size = 1;
  place.port = 65536;
  fails(peerbus_comm_at(&place, nullptr, &comm), PEERBUS_INVALID_ARGUMENT, "port");
  fails(peerbus_comm_at(&place, nullptr, nullptr), PEERBUS_INVALID_ARGUMENT, "comm is NULL");

  // A structure of a later version, which may set members that this version does not know.
  struct {
    peerbus_place known;
    std::uint64_t later;
  } grown{};
  grown.known.struct_bytes = sizeof grown;
  grown.known.size = 1;
  grown.known.port = 29872;
  grown.later = 1;
  fails(peerbus_comm_at(&grown.known, nullptr, &comm), PEERBUS_UNSUPPORTED, "place sets a member");
  grown.later = 0;
  CHECK(peerbus_comm_at(&grown.known, nullptr, &comm) == PEERBUS_OK);
  CHECK(peerbus_comm_destroy(&comm) == PEERBUS_OK);

  std::int32_t status = 7;
  fails(peerbus_run_threads(1, nullptr, nullptr, nullptr, &status), PEERBUS_INVALID_ARGUMENT,
        "rank function is NULL");
  const auto nothing = [](peerbus_comm*, void*) { return std::int32_t{0}; };
  fails(peerbus_run_threads(0, nothing, nullptr, nullptr, &status), PEERBUS_INVALID_ARGUMENT, "0");
  fails(peerbus_run_processes(0, nothing, nullptr, nullptr, &status), PEERBUS_INVALID_ARGUMENT,
        "0");
  for (const auto run : {peerbus_run_threads, peerbus_run_processes})
    fails(run(UINT64_MAX, nothing, nullptr, nullptr, &status), PEERBUS_INVALID_ARGUMENT,
          "expected at most 65535");
}

TEST_CASE("objects live as long as what was made from them") {
  peerbus_place place{};
  place.struct_bytes = sizeof place;
  place.size = 1;
  place.port = 29873;
  peerbus_comm* comm = nullptr;
  REQUIRE(peerbus_comm_at(&place, nullptr, &comm) == PEERBUS_OK);
  peerbus_window* window = nullptr;
  REQUIRE(peerbus_window_create(comm, 8, 1, 0, &window) == PEERBUS_OK);
  CHECK(peerbus_comm_destroy(&comm) == PEERBUS_OK);
  CHECK(comm == nullptr);
  const std::uint64_t letter = 9;
  CHECK(peerbus_window_put_signal(window, 0, 0, &letter, 8, 0, 1) == PEERBUS_OK);
  CHECK(peerbus_window_wait(window, 0, 1, PEERBUS_ANY_RANK, 0) == PEERBUS_OK);
  peerbus_window_destroy(&window);
}

TEST_CASE("a communicator of a rank function is not the function's to destroy") {
  CHECK(embed_c::run(2, kind::threads, [](peerbus_comm* comm) {
          peerbus_comm* copy = comm;
          fails(peerbus_comm_destroy(&copy), PEERBUS_INVALID_ARGUMENT, "ends with the function");
          expect(copy == comm, "the handle stays");
        }) == 0);
}

TEST_CASE("a handle in another thread, and each thread's own text") {
  CHECK(embed_c::run(2, kind::threads, [](peerbus_comm* comm) {
          peerbus_window* window = nullptr;
          ok(peerbus_window_create(comm, 8, 1, 0, &window), "create");
          fails(peerbus_window_put(window, 9, 0, "x", 1), PEERBUS_OUT_OF_RANGE, "peer 9");
          std::string first_text = "unset";
          std::string text;
          peerbus_code code = PEERBUS_INTERNAL;
          std::thread{[&] {
            first_text = peerbus_last_error();
            static_cast<void>(peerbus_window_put(window, 5, 0, "x", 1));
            text = peerbus_last_error();
            code = peerbus_window_put_signal(window, 1 - peerbus_comm_rank(comm), 0, "x", 1, 0, 1);
          }}.join();
          expect_equal(first_text, std::string{}, "the text of a new thread");
          expect(text.find("peer 5") != std::string::npos, "the text of the thread: ", text);
          ok(code, "put_signal in a thread");
          fails(PEERBUS_OUT_OF_RANGE, PEERBUS_OUT_OF_RANGE, "peer 9");
          ok(peerbus_window_wait(window, 0, 1, PEERBUS_ANY_RANK, 0), "wait");
          ok(peerbus_comm_barrier(comm, 0), "barrier");
          peerbus_window_destroy(&window);
        }) == 0);
}

TEST_CASE("a child by fork can use nothing of its parent") {
  CHECK(embed_c::run(2, kind::processes, [](peerbus_comm* comm) {
          peerbus_window* window = nullptr;
          ok(peerbus_window_create(comm, 8, 1, 0, &window), "create");
          const pid_t child = ::fork();
          if (child == 0) {
            bool right = peerbus_comm_barrier(comm, 0) == PEERBUS_INVALID_ARGUMENT;
            right &= std::string_view{peerbus_last_error()}.find("fork") != std::string_view::npos;
            right &= peerbus_window_put(window, 0, 0, "x", 1) == PEERBUS_INVALID_ARGUMENT;
            peerbus_window_destroy(&window);  // Only forgets it.
            ::_exit(right ? 0 : 1);
          }
          int status = -1;
          expect_equal(::waitpid(child, &status, 0), child, "waitpid");
          expect_equal(status, 0, "the status of the child");
          ok(peerbus_comm_barrier(comm, 0), "barrier");
          peerbus_window_destroy(&window);
        }) == 0);
}

TEST_CASE("a second call with an object in a call is refused") {
  struct meeting {
    peerbus_comm* comm;
    peerbus_window* window;
    int times;
  };
  CHECK(embed_c::run(2, kind::threads, [](peerbus_comm* comm) {
          peerbus_window* window = nullptr;
          ok(peerbus_window_create(comm, 8, 1, 0, &window), "create");
          meeting met{comm, window, 0};
          if (peerbus_comm_rank(comm) == 0) {
            // Is called while rank 0 waits in the barrier, which rank 1 enters after this.
            const auto interrupt = [](void* context) -> std::int32_t {
              auto& m = *static_cast<meeting*>(context);
              if (m.times++ != 0) return 0;
              std::string text;
              std::thread{[&] {
                if (peerbus_comm_barrier(m.comm, 0) == PEERBUS_INVALID_ARGUMENT)
                  text = peerbus_last_error();
                // A window serves several threads.
                if (peerbus_window_signal(m.window, 1, 0, 1) != PEERBUS_OK) text += "; signal";
              }}.join();
              return text.ends_with(
                         "the communicator is in another call; expected one call at a "
                         "time, or an object for each thread [invalid argument]")
                         ? 0
                         : 1;
            };
            ok(peerbus_comm_set_interrupt(comm, interrupt, &met), "set_interrupt");
          } else {
            ok(peerbus_window_wait(window, 0, 1, PEERBUS_ANY_RANK, 20 * second), "wait");
          }
          ok(peerbus_comm_barrier(comm, 0), "barrier");
          ok(peerbus_comm_set_interrupt(comm, nullptr, nullptr), "set_interrupt");
          ok(peerbus_comm_barrier(comm, 0), "a barrier after the refused one");
          peerbus_window_destroy(&window);
        }) == 0);
}

TEST_CASE("handles of one team are in one call at a time, and queries go on") {
  struct meeting {
    peerbus_comm* comm;
    peerbus_window* window;
    peerbus_team* team;
    peerbus_team* in_halves;
    int times;
  };
  CHECK(embed_c::run(2, kind::threads, [](peerbus_comm* comm) {
          peerbus_window* window = nullptr;
          ok(peerbus_window_create(comm, 8, 1, 0, &window), "create");
          peerbus_team* team = nullptr;
          ok(peerbus_team_create(comm, nullptr, 0, &team), "team_create");
          peerbus_team* in_halves = nullptr;
          ok(peerbus_team_in_halves(team, &in_halves), "in_halves");
          meeting met{comm, window, team, in_halves, 0};
          std::int32_t value = 1;
          if (peerbus_comm_rank(comm) == 0) {
            // Is called while rank 0 waits in the operation, which rank 1 calls after this.
            const auto interrupt = [](void* context) -> std::int32_t {
              auto& m = *static_cast<meeting*>(context);
              if (m.times++ != 0) return 0;
              bool expected = false;
              std::thread{[&] {
                std::int32_t other = 1;
                std::int32_t chosen = -1;
                expected = peerbus_all_reduce(m.in_halves, &other, &other, 1, PEERBUS_DTYPE_I32,
                                              PEERBUS_SUM, 0) == PEERBUS_INVALID_ARGUMENT &&
                           peerbus_team_algorithm(m.team, PEERBUS_OF_ALL_REDUCE, 4, 0, &chosen) ==
                               PEERBUS_OK;
                if (peerbus_window_signal(m.window, 1, 0, 1) != PEERBUS_OK) expected = false;
              }}.join();
              return expected ? 0 : 1;
            };
            ok(peerbus_comm_set_interrupt(comm, interrupt, &met), "set_interrupt");
          } else {
            ok(peerbus_window_wait(window, 0, 1, PEERBUS_ANY_RANK, 20 * second), "wait");
          }
          ok(peerbus_all_reduce(team, &value, &value, 1, PEERBUS_DTYPE_I32, PEERBUS_SUM, 0), "sum");
          expect_equal(value, std::int32_t{2}, "a sum");
          ok(peerbus_comm_set_interrupt(comm, nullptr, nullptr), "set_interrupt");
          peerbus_team_destroy(&in_halves);
          peerbus_team_destroy(&team);
          peerbus_window_destroy(&window);
        }) == 0);
}

TEST_CASE("a function ends waits") {
  CHECK(embed_c::run(2, kind::threads, [](peerbus_comm* comm) {
          peerbus_window* window = nullptr;
          ok(peerbus_window_create(comm, 8, 1, 0, &window), "create");
          int calls = 0;
          const auto interrupt = [](void* context) -> std::int32_t {
            return ++*static_cast<int*>(context) == 2 ? 1 : 0;
          };
          ok(peerbus_comm_set_interrupt(comm, interrupt, &calls), "set_interrupt");
          fails(peerbus_window_wait(window, 0, 1, PEERBUS_ANY_RANK, -1), PEERBUS_INTERRUPTED,
                "expected at least 1, seen 0 after ");
          expect_equal(calls, 2, "calls of the function");
          fails(peerbus_window_wait(window, 0, 1, PEERBUS_ANY_RANK, 1), PEERBUS_TIMED_OUT,
                "seen 0");
          ok(peerbus_comm_set_interrupt(comm, nullptr, nullptr), "set_interrupt");
          ok(peerbus_comm_barrier(comm, 0), "a barrier after an interrupted wait");
          peerbus_window_destroy(&window);
        }) == 0);
}

TEST_CASE("a function that ends a wait of its own does not end the one around it") {
  struct meeting {
    peerbus_window* window;
    int depth;
    std::int32_t inner;
  };
  CHECK(embed_c::run(1, kind::threads, [](peerbus_comm* comm) {
          peerbus_window* window = nullptr;
          ok(peerbus_window_create(comm, 8, 1, 0, &window), "create");
          meeting met{window, 0, 0};
          const auto interrupt = [](void* context) -> std::int32_t {
            auto& m = *static_cast<meeting*>(context);
            if (m.depth != 0) return 1;
            ++m.depth;
            m.inner = peerbus_window_wait(m.window, 0, 1, PEERBUS_ANY_RANK, -1);
            --m.depth;
            return 0;
          };
          ok(peerbus_comm_set_interrupt(comm, interrupt, &met), "set_interrupt");
          fails(peerbus_window_wait(window, 0, 1, PEERBUS_ANY_RANK, second / 10), PEERBUS_TIMED_OUT,
                "seen 0");
          expect_equal(met.inner, std::int32_t{PEERBUS_INTERRUPTED}, "the wait of the function");
          peerbus_window_destroy(&window);
        }) == 0);
}

TEST_CASE("a function may destroy the objects of the call that it is called in") {
  struct meeting {
    peerbus_window* window;
    peerbus_team* team;
  };
  CHECK(embed_c::run(2, kind::threads, [](peerbus_comm* comm) {
          peerbus_window* window = nullptr;
          ok(peerbus_window_create(comm, 8, 1, 0, &window), "create");
          peerbus_team* team = nullptr;
          ok(peerbus_team_create(comm, nullptr, 0, &team), "team_create");
          meeting met{window, team};
          if (peerbus_comm_rank(comm) == 0) {
            const auto interrupt = [](void* context) -> std::int32_t {
              auto& m = *static_cast<meeting*>(context);
              if (m.team == nullptr) return 0;
              peerbus_team_destroy(&m.team);
              if (peerbus_window_signal(m.window, 1, 0, 1) != PEERBUS_OK) return 1;
              peerbus_window_destroy(&m.window);
              return 0;
            };
            ok(peerbus_comm_set_interrupt(comm, interrupt, &met), "set_interrupt");
          } else {
            ok(peerbus_window_wait(window, 0, 1, PEERBUS_ANY_RANK, 20 * second), "wait");
          }
          std::int32_t value = 1;
          ok(peerbus_all_reduce(team, &value, &value, 1, PEERBUS_DTYPE_I32, PEERBUS_SUM, 0), "sum");
          expect_equal(value, std::int32_t{2}, "a sum");
          ok(peerbus_comm_set_interrupt(comm, nullptr, nullptr), "set_interrupt");
          expect(peerbus_comm_rank(comm) == 1 || (met.team == nullptr && met.window == nullptr),
                 "handles that the function destroyed");
          peerbus_team_destroy(&met.team);
          peerbus_window_destroy(&met.window);
        }) == 0);
}

TEST_CASE("only waits of Python's thread let Python handle signals") {
  CHECK(embed_c::run(1, kind::threads, [](peerbus_comm* comm) {
          static int locks = 0;
          static int checks = 0;
          peerbus_window* window = nullptr;
          ok(peerbus_window_create(comm, 8, 1, 0, &window), "create");
          std::array<void*, 3> raised{};
          peerbus_python python{};
          python.struct_bytes = sizeof python;
          python.thread = std::bit_cast<std::uint64_t>(::pthread_self());
          python.ensure_gil = []() -> std::int32_t { return ++locks; };
          python.release_gil = [](std::int32_t state) { locks -= state; };
          python.check_signals = []() -> std::int32_t {
            return locks == 1 && ++checks == 2 ? -1 : 0;
          };
          python.fetch = [](void** type, void** value, void** traceback) {
            *type = &locks;
            *value = &checks;
            *traceback = nullptr;
          };
          fails(peerbus_comm_set_python(comm, &python), PEERBUS_INVALID_ARGUMENT, "NULL");
          python.raised = raised.data();
          ok(peerbus_comm_set_python(comm, &python), "set_python");
          peerbus_code elsewhere = PEERBUS_OK;
          std::thread{[&] {
            elsewhere = peerbus_window_wait(window, 0, 1, PEERBUS_ANY_RANK, second / 5);
          }}.join();
          expect_equal(elsewhere, PEERBUS_TIMED_OUT, "a wait of another thread");
          expect_equal(checks, 0, "checks for signals by another thread");
          fails(peerbus_window_wait(window, 0, 1, PEERBUS_ANY_RANK, -1), PEERBUS_INTERRUPTED,
                "seen 0");
          expect_equal(checks, 2, "checks for signals");
          expect_equal(locks, 0, "locks that are held");
          expect(raised[0] == &locks && raised[1] == &checks, "what the handler raised");
          ok(peerbus_comm_set_interrupt(comm, nullptr, nullptr), "set_interrupt");
          fails(peerbus_window_wait(window, 0, 1, PEERBUS_ANY_RANK, second / 10), PEERBUS_TIMED_OUT,
                "seen 0");
          expect_equal(checks, 2, "checks for signals without a function");
          peerbus_window_destroy(&window);
        }) == 0);
}

TEST_CASE("processes that meet at a place, and subgroups of them") {
  static constexpr std::uint64_t size = 3;
  const auto rank_program = [](std::uint64_t rank) {
    peerbus_place place{};
    place.struct_bytes = sizeof place;
    place.rank = rank;
    place.size = size;
    place.port = 29874;
    place.job = "embed_c";
    peerbus_comm* comm = nullptr;
    ok(peerbus_comm_at(&place, nullptr, &comm), "comm_at");
    check_window(comm);
    // Ranks 2 and 0 in that order, and rank 1 alone.
    const std::array<std::uint64_t, 2> pair{2, 0};
    const std::uint64_t alone = 1;
    peerbus_comm* part = nullptr;
    fails(peerbus_comm_subgroup(comm, &size, 1, nullptr, &part), PEERBUS_INVALID_ARGUMENT, "3");
    // A bad list of one rank is refused on all.
    const std::array<std::uint64_t, 5> many{0, 1, 2, 1, 2};
    fails(peerbus_comm_subgroup(comm, many.data(), rank == 0 ? many.size() : size, nullptr, &part),
          PEERBUS_INVALID_ARGUMENT, "names rank 1 twice");
    const std::array<std::uint64_t, 2> far{0, 9};
    fails(peerbus_comm_subgroup(comm, rank == 0 ? far.data() : many.data(), rank == 0 ? 2 : size,
                                nullptr, &part),
          PEERBUS_INVALID_ARGUMENT, "ranks 0, 9 was asked for by rank 0");
    ok(rank == 1 ? peerbus_comm_subgroup(comm, &alone, 1, nullptr, &part)
                 : peerbus_comm_subgroup(comm, pair.data(), 2, nullptr, &part),
       "subgroup");
    expect_equal(peerbus_comm_size(part), rank == 1 ? 1U : 2U, "size of the subgroup");
    expect_equal(peerbus_comm_rank(part), rank == 0 ? 1U : 0U, "rank in the subgroup");
    check_window(part);
    check_window(comm);
    ok(peerbus_comm_destroy(&part), "destroy");
    ok(peerbus_comm_destroy(&comm), "destroy");
  };
  std::array<pid_t, size> children{};
  for (std::uint64_t rank = 0; rank < size; ++rank) {
    children[rank] = ::fork();
    if (children[rank] == 0) {
      try {
        rank_program(rank);
        ::_exit(0);
      } catch (const std::exception& problem) {
        std::fprintf(stderr, "rank %d: %s\n", static_cast<int>(rank), problem.what());
        ::_exit(1);
      }
    }
  }
  for (const pid_t child : children) {
    int status = -1;
    CHECK(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  }
}

}  // namespace window_test
