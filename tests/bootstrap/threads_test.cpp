// SPDX-License-Identifier: MIT
// ctest: tsan
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/bootstrap/threads.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/signal.hpp>

#include "support.hpp"

namespace threads_test {

using namespace std::chrono_literals;
using namespace test;
using peerbus::rank_id;
using peerbus::run_threads;

TEST_CASE("run_threads: a world of too many ranks is refused before memory is taken") {
  for (const std::size_t ranks : {std::size_t{65536}, std::numeric_limits<std::size_t>::max()}) {
    const auto caught = error_of([&] { (void)run_threads(ranks, [](bootstrap&) {}); });
    CHECK(caught.code() == errc::invalid_argument);
    CHECK(contains(caught.what(), "given to run_threads, expected at most 65535"));
  }
}

TEST_CASE("run_threads: a world of no ranks is refused") {
  const auto caught = error_of([] { (void)run_threads(0, [](bootstrap&) {}); });
  CHECK(caught.code() == errc::invalid_argument);
  CHECK(contains(caught.what(), "a world of 0 ranks"));
  CHECK(contains(caught.what(), "expected at least 1"));
}

TEST_CASE("run_threads: the worst status counts") {
  const time_limit limit;
  const auto worst_of = [](std::vector<int> statuses) {
    return run_threads(statuses.size(),
                       [&](bootstrap& boot) { return statuses[boot.rank().index()]; });
  };
  CHECK(worst_of({0}) == 0);
  CHECK(worst_of({0, 7, 3}) == 7);
  CHECK(worst_of({0, -1}) == 255);
  CHECK(worst_of({256, 0}) == 255);
  CHECK(run_threads(3, [](bootstrap&) {}) == 0);
}

TEST_CASE("run_threads: ranks share an address space, and gather in step") {
  const time_limit limit;
  constexpr std::size_t n = 8;
  constexpr std::uint64_t rounds = 200;
  std::vector<std::uint64_t> written(n, 0);  // plain: the allgather is what orders them
  const int status = run_threads(n, [&](bootstrap& boot) {
    require(boot.addresses() == peerbus::address_space::shared, "a shared address space");
    for (std::uint64_t round = 1; round <= rounds; ++round) {
      written[boot.rank().index()] = round;
      (void)boot.allgather({}, patience(), "writing");
      for (const auto value : written) require(value == round, "what all wrote in this round");
      (void)boot.allgather({}, patience(), "reading");
    }
  });
  CHECK(status == 0);
}

TEST_CASE("run_threads: exceptions are reported with their rank, once prefixed") {
  const time_limit limit;
  int status = 0;
  const auto said = stderr_of([&] {
    status = run_threads(3, [](bootstrap& boot) {
      if (boot.rank() == rank_id{1}) throw std::runtime_error{"boom"};
      if (boot.rank() == rank_id{2}) throw 42;
      throw peerbus::error{errc::unsupported, "no such thing"};
    });
  });
  CHECK(status == 1);
  CHECK(contains(said, "peerbus: rank 0: no such thing [unsupported]\n"));
  CHECK(contains(said, "peerbus: rank 1: boom\n"));
  CHECK(contains(said, "peerbus: rank 2: "));
}

TEST_CASE("run_threads: all ranks of a failed collective say the same, and later ones are told") {
  const time_limit limit;
  std::vector<std::string> said(4);
  const int status = run_threads(4, [&](bootstrap& boot) {
    const std::size_t me = boot.rank().index();
    const auto caught =
        error_of([&] { (void)boot.allgather({}, patience(), me == 3 ? "this" : "that"); });
    said[me] = caught.what();
    const auto after = error_of([&] { (void)boot.allgather({}, patience(), "next"); });
    require(after.code() == errc::poisoned, after.what());
    require(contains(after.what(), "different collectives"), after.what());
  });
  CHECK(status == 0);
  for (const auto& text : said) CHECK(text == said[0]);
}

TEST_CASE("run_threads: a signal wait ends when a rank fails") {
  const time_limit limit;
  peerbus::signal_word never;
  std::atomic<int> told{0};
  (void)stderr_of([&] {
    (void)run_threads(4, [&](bootstrap& boot) {
      if (boot.rank() == rank_id{2}) throw std::runtime_error{"gone"};
      const errc found = never.wait_at_least(1, patience(), {0, 0, 0, std::chrono::milliseconds{1}},
                                             [&] { return boot.members()->health(rank_id{2}); });
      if (found == errc::peer_dead) ++told;
    });
  });
  CHECK(told == 3);
}

TEST_CASE("run_threads: several worlds at once") {
  const time_limit limit;
  const int status = run_threads(3, [](bootstrap& outer) {
    const int inner = run_threads(3, [&outer](bootstrap& boot) {
      const std::string mine = std::to_string(outer.rank().index() * 10 + boot.rank().index());
      const auto given = boot.allgather({bytes_of(mine), {}}, patience(), "inner");
      for (std::size_t rank = 0; rank < 3; ++rank)
        require(text_of(given[rank].bytes) == std::to_string(outer.rank().index() * 10 + rank),
                "the ranks of the own world");
    });
    (void)outer.allgather({}, patience(), "outer");
    return inner;
  });
  CHECK(status == 0);
}

}  // namespace threads_test
