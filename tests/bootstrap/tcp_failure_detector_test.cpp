// SPDX-License-Identifier: MIT
// ctest: tsan
//
// How ranks over TCP hear of each other's end. The links are socket pairs: any stream will do.
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/detail/tcp_failure_detector.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/bootstrap/tcp.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/unique_fd.hpp>

#include "tcp_support.hpp"

namespace tcp_news_test {

using namespace std::chrono_literals;
using namespace test;
using peerbus::membership;
using peerbus::rank_id;
using peerbus::rank_state;
using peerbus::detail::tcp_failure_detector;

namespace {

/// Rank 0 of `size`, and the other ends of its links.
struct rank_0 {
  explicit rank_0(std::size_t size) : ends(size) {
    std::vector<connection> links(size);
    for (std::size_t rank = 1; rank < size; ++rank) {
      int pair[2];
      require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0, "a socket pair");
      links[rank] = unique_fd{pair[0]};
      ends[rank].reset(pair[1]);
    }
    auto news = std::make_shared<tcp_failure_detector>(rank_id{0}, std::move(links));
    auto* states = news->states();
    members = std::make_unique<membership>(rank_id{0}, size, states, std::move(news));
  }

  std::vector<unique_fd> ends;
  std::unique_ptr<membership> members;
};

/// Rank `me` at the other end of `link`.
std::unique_ptr<membership> other_rank(std::size_t me, std::size_t size, unique_fd link) {
  std::vector<connection> links(size);
  links[0] = std::move(link);
  auto news = std::make_shared<tcp_failure_detector>(rank_id{me}, std::move(links));
  auto* states = news->states();
  return std::make_unique<membership>(rank_id{me}, size, states, std::move(news));
}

std::array<std::byte, 8> piece(std::uint8_t rank, std::uint8_t state) {
  return {std::byte{0}, std::byte{0}, std::byte{0}, std::byte{rank},
          std::byte{0}, std::byte{0}, std::byte{0}, std::byte{state}};
}

}  // namespace

TEST_CASE("news: what a rank says reaches rank 0, and through it the others") {
  const time_limit limit;
  rank_0 center{4};
  auto one = other_rank(1, 4, std::move(center.ends[1]));
  auto two = other_rank(2, 4, std::move(center.ends[2]));
  auto three = other_rank(3, 4, std::move(center.ends[3]));
  CHECK(one->health(std::nullopt) == errc::ok);
  two->announce(rank_state::left);
  two->announce(rank_state::failed);  // The first word stands.
  CHECK(one->state(rank_id{2}) == rank_state::running);
  CHECK(center.members->fate(rank_id{2}) == "rank 2 left");
  CHECK(one->fate(rank_id{2}) == "rank 2 left");
  CHECK(one->health(rank_id{2}) == errc::peer_dead);
  CHECK(one->health(std::nullopt) == errc::ok);
  three.reset();  // Without a word.
  CHECK(center.members->fate(rank_id{3}) == "rank 3 died");
  CHECK(one->fate(rank_id{3}) == "rank 3 died");
  CHECK(one->health(std::nullopt) == errc::peer_dead);
  CHECK(one->end_by_exception() == rank_state::followed);
  one->announce(rank_state::followed);
  CHECK(center.members->fate(rank_id{1}) == "rank 1 ended with another");
  CHECK(center.members->describe_missing() == "rank 2 left, rank 3 died");
}

TEST_CASE("news: a rank whose last peers left has followed them, and is not named as the cause") {
  const time_limit limit;
  rank_0 center{3};
  auto one = other_rank(1, 3, std::move(center.ends[1]));
  auto two = other_rank(2, 3, std::move(center.ends[2]));
  two->announce(rank_state::left);
  CHECK(center.members->fate(rank_id{2}) == "rank 2 left");
  CHECK(one->health(std::nullopt) == errc::ok);
  CHECK(one->end_by_exception() == rank_state::failed);
  center.members->announce(rank_state::left);
  CHECK(one->health(std::nullopt) == errc::peer_dead);
  CHECK(one->end_by_exception() == rank_state::followed);
  one->announce(one->end_by_exception());
  CHECK(center.members->describe_missing() == "rank 2 left");
}

TEST_CASE("news: rank 0 passes on what it knows before its own end") {
  const time_limit limit;
  rank_0 center{3};
  auto one = other_rank(1, 3, std::move(center.ends[1]));
  auto two = other_rank(2, 3, std::move(center.ends[2]));
  two->announce(rank_state::failed);
  center.members->announce(rank_state::left);
  CHECK(one->describe_missing() == "rank 0 left, rank 2 failed");
  center.members.reset();
  CHECK(one->describe_missing() == "rank 0 left, rank 2 failed");
}

TEST_CASE("news: a rank 0 that is gone without a word has died") {
  const time_limit limit;
  rank_0 center{2};
  auto one = other_rank(1, 2, std::move(center.ends[1]));
  CHECK_FALSE(one->ends_within(rank_id{0}, 1ms));
  center.members.reset();
  CHECK(one->ends_within(rank_id{0}, 60s));
  CHECK(one->fate(rank_id{0}) == "rank 0 died");
  CHECK(one->health(std::nullopt) == errc::peer_dead);
}

TEST_CASE("news: pieces may come in any parts") {
  const time_limit limit;
  rank_0 center{3};
  for (const std::byte part : piece(1, 2)) {
    CHECK(center.members->state(rank_id{1}) == rank_state::running);
    send_bytes(center.ends[1], std::span{&part, 1});
  }
  CHECK(center.members->fate(rank_id{1}) == "rank 1 failed");
  CHECK(center.members->fate(rank_id{2}) == "rank 2 runs");
}

TEST_CASE("news: what is no news ends the link, and is not believed") {
  const time_limit limit;
  struct {
    std::array<std::byte, 8> said;
    const char* why;
  } const cases[] = {{piece(2, 1), "of another rank"},
                     {piece(0, 1), "of rank 0"},
                     {piece(3, 1), "of a rank that does not exist"},
                     {piece(1, 0), "running is no news"},
                     {piece(1, 6), "an unknown state"}};
  for (const auto& one : cases) {
    CAPTURE(one.why);
    rank_0 center{3};
    send_bytes(center.ends[1], one.said);
    CHECK(center.members->fate(rank_id{1}) == "rank 1 is out of reach");
    CHECK(center.members->state(rank_id{1}) == rank_state::failed);
    CHECK(center.members->fate(rank_id{2}) == "rank 2 runs");
  }
  // To the others rank 0 may speak of anybody.
  int pair[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
  const unique_fd end{pair[1]};
  const auto one = other_rank(1, 3, unique_fd{pair[0]});
  send_bytes(end, piece(2, 5));
  CHECK(one->fate(rank_id{2}) == "rank 2 is out of reach");
  send_bytes(end, piece(1, 3));  // Of oneself one knows best.
  CHECK(one->state(rank_id{1}) == rank_state::running);
  CHECK(one->state(rank_id{0}) == rank_state::running);
  // But not without end.
  for (int i = 0; i < 3; ++i) send_bytes(end, piece(2, 1));
  CHECK(one->fate(rank_id{0}) == "rank 0 is out of reach");
}

TEST_CASE("news: a link that takes nothing gets it later") {
  const time_limit limit;
  constexpr std::size_t size = 600;
  std::vector<connection> links(size);
  std::array<unique_fd, 3> ends;
  for (std::size_t rank : {1U, 2U}) {
    int pair[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    links[rank] = unique_fd{pair[0]};
    ends[rank].reset(pair[1]);
  }
  // Rank 1's link is full.
  const std::vector<std::byte> plenty(1 << 20);
  const ssize_t filling = ::send(links[1].get(), plenty.data(), plenty.size(), MSG_DONTWAIT);
  REQUIRE(filling > 0);
  REQUIRE(filling < static_cast<ssize_t>(plenty.size()));
  tcp_failure_detector news{rank_id{0}, std::move(links)};
  send_bytes(ends[2], piece(2, 1));
  news.look();
  std::vector<std::byte> taken(static_cast<std::size_t>(filling));
  REQUIRE(read_all(ends[1], taken));
  std::array<std::byte, 8> got{};
  CHECK(::recv(ends[1].get(), got.data(), got.size(), MSG_DONTWAIT) == -1);
  news.look();
  REQUIRE(read_all(ends[1], got));
  CHECK(got == piece(2, 1));
}

TEST_CASE("news: many threads look, while ranks gather and end") {
  const time_limit limit;
  const auto port = free_tcp_port();
  constexpr std::size_t n = 3;
  std::atomic<int> told{0};
  std::vector<std::thread> ranks;
  ranks.reserve(n);
  for (std::size_t rank = 0; rank < n; ++rank)
    ranks.emplace_back([&, rank] {
      tcp_bootstrap boot{tcp_seat(rank, n, port), patience()};
      const auto& members = boot.members();
      std::vector<std::thread> askers;
      askers.reserve(2);
      const auto until = patience();
      for (int i = 0; i < 2; ++i)
        askers.emplace_back([&] {
          // Rank 2 ends in the middle of it.
          while (rank != 2 && members->health(rank_id{2}) == errc::ok && !until.expired()) {
          }
          if (rank != 2 && members->fate(rank_id{2}) == "rank 2 left") ++told;
        });
      for (int round = 0; round < 20; ++round)
        (void)boot.allgather({bytes_of("round"), {}}, until, "together");
      if (rank == 2) members->announce(rank_state::left);
      for (auto& asker : askers) asker.join();
      // Rank 0 stays until the others have heard it.
      while (rank != 2 && told.load() < 4 && !until.expired()) (void)members->first_failed();
    });
  for (auto& rank : ranks) rank.join();
  CHECK(told.load() == 4);
}

}  // namespace tcp_news_test
