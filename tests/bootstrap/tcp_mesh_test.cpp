// SPDX-License-Identifier: MIT
//
// Ranks that are each connected to every other, and so hear of each other without rank 0.
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bulletin.hpp>
#include <peerbus/bootstrap/detail/news_stream.hpp>
#include <peerbus/bootstrap/detail/tcp_failure_detector.hpp>
#include <peerbus/bootstrap/detail/tcp_mesh.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/bootstrap/tcp.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/unique_fd.hpp>

#include "tcp_support.hpp"

namespace tcp_mesh_test {

using namespace std::chrono_literals;
using namespace test;
using peerbus::bulletin;
using peerbus::rank_id;
using peerbus::rank_state;
using peerbus::detail::news;
using peerbus::detail::tcp_failure_detector;

namespace {

tcp_settings mesh_seat(std::size_t rank, std::size_t size, std::uint16_t port) {
  auto seat = tcp_seat(rank, size, port);
  seat.mesh = true;
  seat.host = rank % 2 == 0 ? "an even host" : "an odd host";
  return seat;
}

/// Starts one process per rank of a mesh. Returns: their exit statuses, by rank.
template <class F>
std::vector<int> run_mesh(std::size_t n, F f) {
  const auto port = free_tcp_port();
  std::vector<pid_t> children;
  children.reserve(n);
  for (std::size_t rank = 0; rank < n; ++rank)
    children.push_back(in_child([&] {
      tcp_bootstrap boot{mesh_seat(rank, n, port), patience()};
      f(boot);
      return 0;
    }));
  std::vector<int> statuses;
  for (const pid_t child : children) statuses.push_back(status_of(child));
  return statuses;
}

void wait_for(const auto& condition, const char* what) {
  for (const auto until = patience(); !condition(); std::this_thread::yield())
    require(!until.expired(), what);
}

/// Waits until `other` has the state `wanted` on this rank.
void await(const bootstrap& boot, std::size_t other, rank_state wanted) {
  wait_for([&] { return boot.members()->state(rank_id{other}) == wanted; }, "the end of a rank");
}

std::vector<std::byte> encoded(std::uint32_t subject, std::uint32_t state,
                               const std::string& message = {}) {
  const auto head = news::encode_head(subject, state);
  std::vector<std::byte> bytes{head.begin(), head.end()};
  const auto rest = bytes_of(message);
  bytes.insert(bytes.end(), rest.begin(), rest.end());
  return bytes;
}

/// The detector of rank 1 of 3 in a mesh, and the ends of ranks 0 and 2.
struct rank_1 {
  rank_1() {
    std::vector<connection> first(3);
    std::vector<connection> second(3);
    for (const std::size_t peer : {0U, 2U}) {
      int pair[2];
      require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0, "a socket pair");
      (peer == 0 ? first : second)[peer] = unique_fd{pair[0]};
      ends[peer].reset(pair[1]);
    }
    detector = std::make_shared<tcp_failure_detector>(rank_id{1}, std::move(first));
    detector->become_mesh(std::move(second));
    members = std::make_unique<peerbus::membership>(rank_id{1}, 3, detector->states(), detector);
  }

  std::vector<unique_fd> ends = std::vector<unique_fd>(3);
  std::shared_ptr<tcp_failure_detector> detector;
  std::unique_ptr<peerbus::membership> members;
};

}  // namespace

TEST_CASE("mesh: all ranks hear of each end by themselves, also after that of rank 0") {
  const time_limit limit;
  const belongings before;
  for (const std::size_t n : {2U, 3U, 6U}) {
    CAPTURE(n);
    const auto statuses = run_mesh(n, [&](tcp_bootstrap& boot) {
      const std::size_t me = boot.rank().index();
      (void)boot.allgather({bytes_of("all are here"), {}}, patience(), "first");
      // They end one after the other, by a signal and by themselves in turn.
      for (std::size_t gone = 0; gone < me; ++gone) {
        await(boot, gone, gone % 2 == 0 ? rank_state::failed : rank_state::left);
        require(boot.members()->fate(rank_id{gone}) ==
                    peerbus::detail::concat(rank_id{gone}, gone % 2 == 0 ? " died" : " left"),
                "how it ended");
      }
      if (me % 2 == 0 && me + 1 < n) ::raise(SIGKILL);
    });
    for (std::size_t rank = 0; rank < n; ++rank)
      CHECK(statuses[rank] == (rank % 2 == 0 && rank + 1 < n ? 128 + SIGKILL : 0));
  }
  CHECK(belongings{} == before);
}

TEST_CASE("mesh: a rank that is stopped runs") {
  const time_limit limit;
  const shared<std::atomic<int>> stopped;
  const auto statuses = run_mesh(3, [&](tcp_bootstrap& boot) {
    (void)boot.allgather({}, patience(), "first");
    if (boot.rank() == rank_id{2}) {
      *stopped = ::getpid();
      ::raise(SIGSTOP);
    } else if (boot.rank() == rank_id{1}) {
      wait_for([&] { return stopped->load() != 0; }, "a rank that stops");
      require(!boot.members()->ends_within(rank_id{2}, 300ms), "a rank that is stopped runs");
      const auto until = deadline::after(300ms);
      const auto caught = error_of([&] { (void)boot.allgather({}, until, "second"); });
      require(caught.code() == errc::timed_out, "a deadline");
      require(contains(caught.what(), "ranks 0, 2 of 3") || contains(caught.what(), "rank 0 of 3"),
              caught.what());
      ::kill(stopped->load(), SIGKILL);
    }
    if (boot.rank() != rank_id{2}) await(boot, 2, rank_state::failed);
  });
  CHECK(statuses == std::vector{0, 0, 128 + SIGKILL});
}

TEST_CASE("mesh: messages of a rank come in order, and before its end") {
  const time_limit limit;
  constexpr std::uint64_t count = 500;
  const auto statuses = run_mesh(4, [&](tcp_bootstrap& boot) {
    std::vector<std::uint64_t> heard(boot.size());
    std::vector<std::size_t> bytes(boot.size());
    const auto board = boot.messages();
    require(board != nullptr, "messages");
    const auto channel =
        board->subscribe({.take = [&](rank_id from, std::span<const std::byte> message) {
          std::uint64_t number = 0;
          std::memcpy(&number, message.data(), sizeof number);
          if (number == heard[from.index()] + 1) heard[from.index()] = number;
          bytes[from.index()] = message.size();
        }});
    (void)boot.allgather({}, patience(), "all have subscribed");
    std::vector<std::byte> message(bulletin::most_bytes);
    for (std::uint64_t number = 1; number <= count; ++number) {
      std::memcpy(message.data(), &number, sizeof number);
      board->publish(channel, message);
    }
    if (boot.rank().index() < 2) ::raise(SIGKILL);
    for (const std::size_t gone : {0U, 1U}) {
      await(boot, gone, rank_state::failed);
      require(heard[gone] <= count, "no message that was not sent");
    }
    const rank_id other{5 - boot.rank().index()};
    wait_for(
        [&] {
          (void)boot.members()->state(other);
          return heard[other.index()] == count;
        },
        "all messages of a rank that lives");
    require(bytes[other.index()] == message.size(), "whole messages");
    const auto caught = error_of(
        [&] { board->publish(channel, std::vector<std::byte>(bulletin::most_bytes + 1)); });
    require(caught.code() == errc::invalid_argument, "a limit");
    board->unsubscribe(channel);
    // Only with that are both through.
    const auto last =
        board->subscribe({.take = [&](rank_id from, auto) { bytes[from.index()] = 1; }});
    (void)last;
    std::this_thread::yield();
    board->publish(channel, message);  // Dropped.
  });
  CHECK(statuses == std::vector{128 + SIGKILL, 128 + SIGKILL, 0, 0});
}

TEST_CASE("mesh: small messages of a rank that dies next have all come when its death is known") {
  const time_limit limit;
  for (int attempt = 0; attempt < 10; ++attempt) {
    CAPTURE(attempt);
    const auto statuses = run_mesh(3, [&](tcp_bootstrap& boot) {
      std::size_t heard = 0;
      const auto board = boot.messages();
      const auto channel = board->subscribe({.take = [&](rank_id, auto) { ++heard; }});
      (void)boot.allgather({}, patience(), "all have subscribed");
      if (boot.rank() == rank_id{2}) {
        for (int i = 0; i < 20; ++i) board->publish(channel, bytes_of("a word"));
        ::raise(SIGKILL);
      }
      await(boot, 2, rank_state::failed);
      require(heard == 20, "all messages before the end");
      board->unsubscribe(channel);
    });
    CHECK(statuses == std::vector{0, 0, 128 + SIGKILL});
  }
}

TEST_CASE("mesh: what is asked for on some ranks alone is refused on all") {
  const time_limit limit;
  const auto port = free_tcp_port();
  std::vector<pid_t> children;
  for (std::size_t rank = 0; rank < 3; ++rank) {
    auto seat = tcp_seat(rank, 3, port);
    seat.mesh = rank == 1;
    children.push_back(
        expects(seat, 60s, errc::mismatch, {"only one is to be part of a mesh", "PEERBUS_MESH"}));
  }
  CHECK(all_as_expected(children));
}

TEST_CASE("mesh: a rank that dies while the others connect ends that on all") {
  const time_limit limit;
  for (const std::size_t victim : {0U, 2U})
    for (unsigned attempt = 0; attempt < 20; ++attempt) {
      CAPTURE(victim);
      CAPTURE(attempt);
      const shared<std::atomic<int>> pid;
      const pid_t killer = start_killer(*pid, 3 * attempt);
      const auto statuses = run_mesh(4, [&](tcp_bootstrap& boot) {
        (void)boot.allgather({}, patience(), "first");
        if (boot.rank().index() == victim) *pid = ::getpid();
        try {
          for (;;) {
            std::vector<rank_id> everybody;
            for (const rank_id rank : peerbus::all_ranks{4}) everybody.push_back(rank);
            const auto group = boot.subgroup({everybody.rbegin(), everybody.rend()}, patience());
            require(group->messages() != nullptr, "a mesh of a mesh");
          }
        } catch (const peerbus::error& caught) {
          require(caught.code() == errc::peer_dead, caught.what());
        }
      });
      for (std::size_t rank = 0; rank < 4; ++rank)
        CHECK(statuses[rank] == (rank == victim ? 128 + SIGKILL : 0));
      CHECK(status_of(killer) == 0);
    }
}

TEST_CASE("mesh: strangers at the ports of the mesh are hung up on, and the ranks meet") {
  const time_limit limit;
  constexpr std::size_t n = 4;
  // The ports are known as soon as they are open, and the ranks take their time.
  std::vector<std::unique_ptr<peerbus::detail::tcp_mesh>> meshes;
  std::vector<std::vector<std::byte>> offers;
  for (std::size_t rank = 0; rank < n; ++rank) {
    meshes.push_back(
        std::make_unique<peerbus::detail::tcp_mesh>(mesh_seat(rank, n, 1), patience()));
    offers.push_back(meshes.back()->offer());
  }
  std::vector<std::thread> strangers;
  std::atomic<bool> were_hung_up_on{false};
  std::atomic<bool> is_over{false};
  const auto port_of = [&](std::size_t rank) {
    return peerbus::detail::offered_place::decode(
               std::span<const std::byte>{offers[rank]}.subspan(16))
        .port;
  };
  const auto port = port_of(2);
  strangers.emplace_back([&] {
    // Silent, noisy, with another secret, of another group, and as a rank that may not call.
    const unique_fd silent = call_at(port);
    const unique_fd noisy = call_at(port);
    send_bytes(noisy, bytes_of(std::string(100, 'x')));
    connection other = secured(call_at(port), tls_layer::end::calling, "a secret of other people");
    CHECK(shake_hands(other) != handshake::done);
    connection of_other_group = call_as(port, hello_of(3, n));
    hello lower = hello_of(1, n);
    std::memcpy(lower.process.data(), offers[0].data(), lower.process.size());
    connection too_low = call_as(port, lower);
    for (connection* const end : {&of_other_group, &too_low}) {
      std::byte byte{};
      CHECK_FALSE(read_all(*end, std::span{&byte, 1}));
    }
    were_hung_up_on = true;
    wait_for([&] { return is_over.load(); }, "the ranks");  // The silent one stays.
  });
  std::vector<std::thread> ranks;
  std::atomic<int> connected{0};
  std::vector<std::span<const std::byte>> given{offers.begin(), offers.end()};
  for (std::size_t rank = 0; rank < n; ++rank)
    ranks.emplace_back([&, rank] {
      const auto words = std::make_unique<std::atomic<std::uint32_t>[]>(n);
      const peerbus::membership members{rank_id{rank}, n, words.get(), nullptr, {}};
      // Until the last rank calls, the others listen.
      if (rank == 3) wait_for([&] { return were_hung_up_on.load(); }, "the strangers");
      const auto links = meshes[rank]->connect(given, members, patience());
      for (std::size_t peer = 1; peer < n; ++peer)
        if (rank != 0 && peer != rank && links[peer]) ++connected;
    });
  for (auto& rank : ranks) rank.join();
  is_over = true;
  for (auto& stranger : strangers) stranger.join();
  CHECK(connected.load() == 6);
}

TEST_CASE("mesh: a rank speaks for itself alone, and says what is malformed once") {
  const time_limit limit;
  SUBCASE("rank 0 has no news about a rank that this one hears itself") {
    rank_1 me;
    send_bytes(me.ends[0], encoded(2, 3));
    CHECK(me.members->fate(rank_id{2}) == "rank 2 runs");
    CHECK(me.members->fate(rank_id{0}) == "rank 0 runs");
    me.ends[2].reset();
    CHECK(me.members->fate(rank_id{2}) == "rank 2 died");
  }
  SUBCASE("no other rank has news about others") {
    rank_1 me;
    send_bytes(me.ends[2], encoded(0, 3));
    CHECK(me.members->fate(rank_id{2}) == "rank 2 is out of reach");
    CHECK(me.members->fate(rank_id{0}) == "rank 0 runs");
  }
  SUBCASE("messages come in any parts, to the channel that they name") {
    rank_1 me;
    std::string heard;
    const auto channel = me.detector->subscribe({.take = [&](rank_id from, auto message) {
      heard += std::to_string(from.index()) + text_of({message.begin(), message.end()});
    }});
    for (const std::byte part : encoded(channel, news::is_message | 5U, "hello")) {
      me.detector->look();
      CHECK(heard.empty());
      send_bytes(me.ends[2], std::span{&part, 1});
    }
    send_bytes(me.ends[0], encoded(channel, news::is_message, ""));
    send_bytes(me.ends[0], encoded(channel + 1, news::is_message | 3U, "no "));
    me.detector->look();
    CHECK((heard == "2hello0" || heard == "02hello"));
    me.detector->unsubscribe(channel);
    send_bytes(me.ends[2], encoded(channel, news::is_message | 5U, "hello"));
    me.detector->look();
    CHECK(heard.size() == 7);
    CHECK(me.members->fate(rank_id{2}) == "rank 2 runs");
  }
  SUBCASE("a message that is too long ends the connection") {
    rank_1 me;
    send_bytes(me.ends[2],
               encoded(0, news::is_message | static_cast<std::uint32_t>(bulletin::most_bytes + 1)));
    CHECK(me.members->fate(rank_id{2}) == "rank 2 is out of reach");
  }
  SUBCASE("where ranks are no mesh, so does any message") {
    std::vector<connection> links(2);
    int pair[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    links[0] = unique_fd{pair[0]};
    const unique_fd end{pair[1]};
    auto detector = std::make_shared<tcp_failure_detector>(rank_id{1}, std::move(links));
    const peerbus::membership members{rank_id{1}, 2, detector->states(), detector};
    send_bytes(end, encoded(0, news::is_message | 1U, "x"));
    CHECK(members.fate(rank_id{0}) == "rank 0 is out of reach");
  }
}

}  // namespace tcp_mesh_test
