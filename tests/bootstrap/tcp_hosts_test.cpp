// SPDX-License-Identifier: MIT
//
// Subgroups of ranks on several hosts. The ranks of these tests are on one host and give it
// different names.
#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/detail/offered_place.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/bootstrap/tcp.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/unique_fd.hpp>
#include <peerbus/transport/unified_bus.hpp>

#include "tcp_support.hpp"

namespace tcp_hosts_test {

using namespace std::chrono_literals;
using namespace test;
using peerbus::rank_id;
using peerbus::detail::concat;

namespace {

/// One process per rank. Rank r is on host r mod `hosts`. Returns: the greatest exit status.
template <class F>
int run_on_hosts(std::size_t n, std::size_t hosts, F f, const char* address = "127.0.0.1",
                 const char* secret = test::test_secret) {
  const auto port = free_tcp_port();
  std::vector<pid_t> children;
  children.reserve(n);
  for (std::size_t rank = 0; rank < n; ++rank)
    children.push_back(in_child([&] {
      auto settings = tcp_seat(rank, n, port, address);
      settings.host = concat("host ", rank % hosts);
      settings.secret = secret;
      tcp_bootstrap boot{settings, patience()};
      f(boot);
      return 0;
    }));
  int worst = 0;
  for (const pid_t child : children) worst = std::max(worst, status_of(child));
  return worst;
}

/// The ranks from `first` on, `step` apart.
std::vector<rank_id> every(std::size_t step, std::size_t first, std::size_t n) {
  std::vector<rank_id> list;
  for (std::size_t rank = first; rank < n; rank += step) list.emplace_back(rank);
  return list;
}

void check_collective(bootstrap& group) {
  const auto given = group.allgather({bytes_of(concat(group.parent_rank(group.rank()))), {}},
                                     patience(), "numbers");
  for (const rank_id member : peerbus::all_ranks{group.size()})
    require(text_of(given[member.index()].bytes) == concat(group.parent_rank(member)),
            "members as listed");
}

}  // namespace

TEST_CASE("tcp: ranks know who shares their host, and make a subgroup of it for unified_bus") {
  const time_limit limit;
  const belongings before;
  const int status = run_on_hosts(5, 2, [](tcp_bootstrap& boot) {
    const std::size_t host = boot.rank().index() % 2;
    require(boot.near_ranks() == every(2, host, 5), "the ranks of this host");
    require(boot.is_near(boot.rank()) && !boot.is_near(rank_id{1 - host}), "who is near");
    require(boot.ranks_here() == boot.near_ranks().size(), "how many ranks are here");
    require(boot.local_rank() == boot.rank().index() / 2, "the position on the host");

    const auto near = boot.subgroup(boot.near_ranks());
    check_collective(*near);
    require(near->near_ranks().size() == near->size(), "all near");
    require(!boot.passes_descriptors() && near->passes_descriptors(),
            "descriptors among near ranks");
    peerbus::communicator comm{peerbus::unified_bus{*near}};
    auto window = comm.make_window(8, 1);
    comm.barrier(patience());
    (void)boot.allgather({}, patience(), "all are done");
  });
  CHECK(status == 0);
  CHECK(belongings{} == before);
}

TEST_CASE("tcp: subgroups across hosts are as independent, and carry no descriptors") {
  const time_limit limit;
  const belongings before;
  for (const char* address : {"127.0.0.1", "::1", "localhost"})
    // Without a secret, as loopback addresses allow it.
    for (const char* secret : {test::test_secret, ""}) {
      CAPTURE(address);
      CAPTURE(secret);
      const auto run = [](tcp_bootstrap& boot) {
        // Rank 0 is in none of the larger one.
        const bool outside = boot.rank().index() == 0;
        const auto far = boot.subgroup(
            outside ? every(9, 0, 1) : std::vector{rank_id{3}, rank_id{1}, rank_id{4}, rank_id{2}});
        check_collective(*far);
        if (outside) return;
        // Of these, only ranks 1 and 4 share a host.
        require(far->near_ranks().size() ==
                    (boot.rank().index() == 1 || boot.rank().index() == 4 ? 2U : 1U),
                "the near members");
        require(far->ranks_here() == boot.ranks_here(), "the ranks of the parent here");
        const auto nested = far->subgroup(far->near_ranks());
        check_collective(*nested);
        peerbus::communicator comm{peerbus::unified_bus{*nested}};
        comm.barrier(patience());
        // Also from a first rank that is not the far group's.
        const auto again = far->subgroup({rank_id{2}, rank_id{3}, rank_id{0}, rank_id{1}});
        check_collective(*again);
        const auto caught = error_of([&] {
          (void)far->allgather({{}, unique_fd{::memfd_create("x", MFD_CLOEXEC)}}, patience(),
                               "files");
        });
        require(caught.code() == errc::unsupported, caught.what());
        check_collective(*again);
      };
      CHECK(run_on_hosts(5, 3, run, address, secret) == 0);
    }
  CHECK(belongings{} == before);
}

TEST_CASE("tcp: a subgroup across hosts outlives its parent's rank 0, and tells of its own dead") {
  const time_limit limit;
  shared<std::atomic<int>> told;
  const auto start = deadline::clock::now();
  const int status = run_on_hosts(4, 4, [&told](tcp_bootstrap& boot) {
    const bool outside = boot.rank().index() == 0;
    const auto far = boot.subgroup(outside ? every(9, 0, 1) : every(1, 1, 4));
    if (outside) ::kill(::getpid(), SIGKILL);
    while (!boot.members()->first_failed()) std::this_thread::yield();
    for (int round = 0; round < 5; ++round) check_collective(*far);
    require(!far->members()->first_failed(), "no member failed");
    (void)far->allgather({}, patience(), "all have looked");
    if (boot.rank() == rank_id{3}) ::kill(::getpid(), SIGKILL);
    const auto caught = error_of([&] { (void)far->allgather({}, patience(), "alone"); });
    require(caught.code() == errc::peer_dead, caught.what());
    require(contains(caught.what(), "rank 2 died"), caught.what());
    ++*told;
    for (const auto until = deadline::after(20s); told->load() < 2 && !until.expired();)
      (void)far->members()->first_failed();
  });
  CHECK(status == 137);
  CHECK(told->load() == 2);
  CHECK(deadline::clock::now() - start < 20s);
}

TEST_CASE("tcp: a member that ends on its way to a subgroup is missed at once, by number") {
  const time_limit limit;
  using peerbus::detail::offered_place;
  for (const std::size_t hosts : {1U, 3U})
    for (const bool is_first : {false, true})
      for (const bool is_killed : {false, true}) {
        CAPTURE(hosts);
        CAPTURE(is_first);
        CAPTURE(is_killed);
        const int status = run_on_hosts(3, hosts, [=](tcp_bootstrap& boot) {
          const auto list = is_first ? std::vector{rank_id{2}, rank_id{0}, rank_id{1}}
                                     : std::vector{rank_id{1}, rank_id{0}, rank_id{2}};
          if (boot.rank() == rank_id{2}) {
            // Takes part in the collectives of the parent, then goes.
            const auto bytes = std::as_bytes(std::span{list});
            peerbus::gather_or_refuse(boot, "subgroup", {{bytes.begin(), bytes.end()}, {}}, {},
                                      patience());
            const auto place =
                hosts == 1 ? offered_place::on_this_host() : offered_place::of_network("127.0.0.1");
            peerbus::gather_or_refuse(boot, "subgroup", {place.encode(), {}}, {}, patience());
            if (is_killed) ::kill(::getpid(), SIGKILL);
            return;
          }
          const auto caught = error_of([&] { (void)boot.subgroup(list, patience()); });
          require(caught.code() == errc::peer_dead, caught.what());
          for (const char* part :
               {is_first ? "subgroup of ranks 2, 0, 1" : "subgroup of ranks 1, 0, 2",
                is_first ? "rank 0 of 3" : "rank 2 of 3", "was gone"})
            require(contains(caught.what(), part), std::string{part} + " in: " + caught.what());
          // Rank 0 passes news on as long as it looks, and rank 1 may not have heard yet.
          (void)error_of([&] { (void)boot.allgather({}, patience(), "without rank 2"); });
        });
        CHECK(status == (is_killed ? 137 : 0));
      }
}

TEST_CASE("tcp: too long a name of a host is refused before anything is sent") {
  const time_limit limit;
  auto settings = tcp_seat(0, 2, free_tcp_port());
  settings.host = std::string(64, 'h');
  const auto caught = error_of([&] { tcp_bootstrap boot{settings, patience()}; });
  CHECK(caught.code() == errc::invalid_argument);
  CHECK(contains(caught.what(), "64"));
  CHECK(contains(caught.what(), "at most 63"));
}

}  // namespace tcp_hosts_test
