// SPDX-License-Identifier: MIT
// ctest: waits
//
// A network that breaks under a group: nobody dies, nobody says anything.
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/bootstrap/tcp.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/unique_fd.hpp>

#include "tcp_support.hpp"

namespace tcp_unreachable_test {

using namespace std::chrono_literals;
using namespace test;
using peerbus::rank_id;

namespace {

/// Of the network namespace that this process is in.
bool switch_loopback(bool on) {
  const unique_fd any{::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
  ifreq request{};
  std::memcpy(request.ifr_name, "lo", 3);
  request.ifr_flags = on ? IFF_UP : 0;
  return ::ioctl(any.get(), SIOCSIFFLAGS, &request) == 0;
}

constexpr int no_namespace = 77;
constexpr std::chrono::milliseconds least = 2s;

/// Whether a connection of this process ends when its bytes are not acknowledged for so long.
bool is_a_limit(std::chrono::milliseconds time) {
  for (int file = 3; file < 200; ++file) {
    int limit = 0;
    socklen_t bytes = sizeof limit;
    if (::getsockopt(file, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit, &bytes) == 0 &&
        limit == time.count())
      return true;
  }
  return false;
}

}  // namespace

TEST_CASE("tcp: ranks out of each other's reach are told so, also while they gather") {
  const time_limit limit;
  const int status = status_of(in_child([] {
    // A network of this test's own to break. Root may have one, and often any user.
    if (::unshare(CLONE_NEWNET) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0)
      return no_namespace;
    if (!switch_loopback(true)) return no_namespace;
    std::vector<pid_t> ranks;
    ranks.reserve(4);
    for (std::size_t rank = 0; rank < 4; ++rank)
      ranks.push_back(in_child([=] {
        auto seat = tcp_seat(rank, 4, 2000);
        seat.out_of_reach_after = least;
        tcp_bootstrap boot{seat, patience()};
        require(is_a_limit(least), "the limit of a connection");
        const auto& members = boot.members();
        (void)boot.allgather({}, patience(), "together");
        if (rank == 3) require(switch_loopback(false), "a broken network");
        if (rank == 0 || rank == 1) {
          const auto caught = error_of([&] { (void)boot.allgather({}, patience(), "apart"); });
          require(caught.code() == errc::peer_dead, caught.what());
          require(contains(caught.what(), "is out of reach"), caught.what());
        } else {
          const auto until = patience();
          while (members->health(std::nullopt) == errc::ok && !until.expired())
            std::this_thread::sleep_for(2ms);
          require(members->fate(rank_id{0}) == "rank 0 is out of reach", members->fate(rank_id{0}));
          require(members->describe_missing() == "rank 0 is out of reach", "nobody else known of");
        }
        return 0;
      }));
    return all_as_expected(ranks) ? 0 : 1;
  }));
  if (status == no_namespace)
    MESSAGE("not tested: this machine gives no network namespace to break");
  else
    CHECK(status == 0);
}

}  // namespace tcp_unreachable_test
