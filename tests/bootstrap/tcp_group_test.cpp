// SPDX-License-Identifier: MIT
//
// What a group that has met over TCP does otherwise than others, and how its ranks hear of each
// other's end. What every bootstrap must do is in all_bootstraps_test.cpp.
#include <fcntl.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/bootstrap/tcp.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/unique_fd.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "tcp_support.hpp"

namespace tcp_group_test {

using namespace std::chrono_literals;
using namespace test;
using peerbus::rank_id;
using peerbus::rank_state;

namespace {

/// Spins until `holds`, or throws.
template <class F>
void wait_until(F holds, const std::string& what) {
  for (const auto until = patience(); !holds(); std::this_thread::yield())
    require(!until.expired(), what);
}

}  // namespace

TEST_CASE("tcp: a descriptor is refused on all ranks, whoever gives it") {
  const time_limit limit;
  for (std::size_t giver : {0U, 1U, 9U}) {
    CAPTURE(giver);
    const int status = run_over_tcp(3, [giver](bootstrap& boot) {
      unique_fd file;
      // 9: everybody.
      if (giver == 9 || boot.rank().index() == giver) file.reset(::memfd_create("x", MFD_CLOEXEC));
      const auto caught =
          error_of([&] { (void)boot.allgather({{}, std::move(file)}, patience(), "files"); });
      require(caught.code() == errc::unsupported, caught.what());
      require(contains(caught.what(), "gave a file descriptor"), caught.what());
      if (giver != 9)
        require(contains(caught.what(), peerbus::detail::concat(rank_id{giver}, " gave")),
                caught.what());
    });
    CHECK(status == 0);
  }
}

TEST_CASE("tcp: unified_bus is refused on all ranks, with what to use instead") {
  const time_limit limit;
  const int status = run_over_tcp(3, [](bootstrap& boot) {
    const auto caught = error_of([&] {
      peerbus::communicator comm{peerbus::unified_bus{boot}};
      (void)comm.make_window(4096, 1);
    });
    require(caught.code() == errc::unsupported, caught.what());
    require(contains(caught.what(), "verbs") && contains(caught.what(), "environment_bootstrap"),
            caught.what());
  });
  CHECK(status == 0);
}

TEST_CASE("tcp: the destructor tells how the rank ended, also to ranks that only hear of it") {
  const time_limit limit;
  const auto port = free_tcp_port();
  shared<std::atomic<int>> done;
  std::vector<pid_t> ranks;
  ranks.reserve(4);
  for (std::size_t rank = 0; rank < 4; ++rank)
    ranks.push_back(in_child([&, rank] {
      try {
        tcp_bootstrap boot{tcp_seat(rank, 4, port), patience()};
        if (rank == 1) return 0;
        if (rank == 2) throw std::runtime_error{"enough"};
        const auto& members = boot.members();
        wait_until([&] { return members->describe_missing() == "rank 1 left, rank 2 failed"; },
                   "both fates");
        require(members->first_failed() == rank_id{2}, "first failed: rank 2");
        ++*done;
        // Rank 0 passes news on as long as it looks.
        wait_until([&] { return members->first_failed() && done->load() == 2; }, "the other");
      } catch (const std::runtime_error& caught) {
        if (std::string{caught.what()} != "enough") throw;
      }
      return 0;
    }));
  CHECK(all_as_expected(ranks));
}

TEST_CASE("tcp: when rank 0 leaves, the others have its last news, and are told no more") {
  const time_limit limit;
  shared<std::atomic<int>> told;
  const int status = run_over_tcp(3, [&](bootstrap& boot) {
    const auto& members = boot.members();
    if (boot.rank() == rank_id{2}) return;
    if (boot.rank() == rank_id{0}) {
      wait_until([&] { return members->state(rank_id{2}) == rank_state::left; }, "rank 2 left");
      return;
    }
    wait_until([&] { return members->describe_missing() == "rank 0 left, rank 2 left"; },
               "both left");
    require(members->health(rank_id{0}) == errc::peer_dead, "missed by who waits for it");
    ++*told;
  });
  CHECK(status == 0);
  CHECK(told->load() == 1);
}

TEST_CASE("tcp: any thread may ask for the health of the group, also during a collective") {
  const time_limit limit;
  const int status = run_over_tcp(3, [](bootstrap& boot) {
    const auto& members = boot.members();
    std::atomic<bool> stop{false};
    std::atomic<int> wrong{0};
    std::vector<std::thread> askers;
    for (int i = 0; i < 3; ++i)
      askers.emplace_back([&] {
        while (!stop.load())
          if (members->health(std::nullopt) != errc::ok) ++wrong;
      });
    for (int round = 0; round < 50; ++round)
      (void)boot.allgather({bytes_of("round"), {}}, patience(), "together");
    stop = true;
    for (auto& asker : askers) asker.join();
    require(wrong.load() == 0, "nobody missed");
    (void)boot.allgather({}, patience(), "all have asked");
  });
  CHECK(status == 0);
}

}  // namespace tcp_group_test
