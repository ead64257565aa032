// SPDX-License-Identifier: MIT
//
// Ranks that are each connected to every other, and so hear of each other without rank 0.
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
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

#include "support/silent_children.hpp"
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

TEST_CASE("mesh: a child that a rank forks does not speak for it") {
  const time_limit limit;
  CHECK(run_mesh(3, [](tcp_bootstrap& boot) { (void)test::is_silent_child(boot); }) ==
        std::vector{0, 0, 0});
}

TEST_CASE("mesh: ranks tell what they wait for, once that takes long") {
  const time_limit limit;
  const auto statuses = run_mesh(3, [&](tcp_bootstrap& boot) {
    const auto& members = boot.members();
    (void)boot.allgather({}, patience(), "first");
    if (boot.rank() != rank_id{2}) {
      (void)boot.allgather({}, patience(), "second");
      return;
    }
    wait_for(
        [&] {
          (void)members->first_failed();  // It looks.
          return members->last_seen(rank_id{0}) && members->last_seen(rank_id{1});
        },
        "what the others wait for");
    for (const rank_id peer : {rank_id{0}, rank_id{1}}) {
      const auto seen = *members->last_seen(peer);
      require(seen.wait.operation == peerbus::group_operation::allgather && !seen.is_over &&
                  seen.since >= 200ms && seen.heard <= seen.since,
              "a wait of 200 ms or more");
      require(contains(members->describe_last_seen(peer), "ago, waiting in allgather"),
              members->describe_last_seen(peer));
    }
    const auto own = members->last_seen(rank_id{2});
    require(own && own->is_over, "what this rank did last");
    (void)boot.allgather({}, patience(), "second");
  });
  CHECK(statuses == std::vector{0, 0, 0});
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
      const peerbus::membership members{rank_id{rank}, n, words.get(), nullptr};
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

TEST_CASE("mesh: a connection that fails tells nothing about the process at its other end") {
  const time_limit limit;
  // Bytes that nobody has read make the end of a socket pair a reset.
  SUBCASE("as a read tells") {
    rank_1 me;
    me.detector->publish(0, bytes_of("unread"));
    me.ends[2].reset();
    CHECK(me.members->fate(rank_id{2}) == "rank 2 is out of reach");
  }
  SUBCASE("as a send tells before") {
    rank_1 me;
    me.detector->publish(0, bytes_of("unread"));
    me.ends[2].reset();
    for (int i = 0; i < 3; ++i) me.detector->publish(0, bytes_of("more"));
    CHECK(me.members->fate(rank_id{2}) == "rank 2 is out of reach");
    CHECK(me.members->fate(rank_id{0}) == "rank 0 runs");
  }
  SUBCASE("while one that is closed tells that it has ended, whatever is sent there") {
    rank_1 me;
    me.ends[2].reset();
    for (int i = 0; i < 3; ++i) me.detector->publish(0, bytes_of("more"));
    CHECK(me.members->fate(rank_id{2}) == "rank 2 died");
  }
  SUBCASE("where ranks are no mesh, it is the end of the process") {
    std::vector<connection> links(2);
    int pair[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    links[0] = unique_fd{pair[0]};
    unique_fd end{pair[1]};
    auto detector = std::make_shared<tcp_failure_detector>(rank_id{1}, std::move(links));
    const peerbus::membership members{rank_id{1}, 2, detector->states(), detector};
    detector->tell(rank_state::left);
    end.reset();
    CHECK(members.fate(rank_id{0}) == "rank 0 died");
  }
}

TEST_CASE("mesh: who hangs up on a rank that lives resets the connection") {
  const time_limit limit;
  const auto port = free_tcp_port();
  const unique_fd listener = squat(port);
  const unique_fd end = call_at(port);
  std::vector<connection> links(3);
  links[2] = unique_fd{::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC)};
  REQUIRE(links[2]);
  tcp_failure_detector detector{rank_id{1}, std::vector<connection>(3)};
  detector.become_mesh(std::move(links));
  send_bytes(end, encoded(0, 3));  // News about another.
  CHECK(detector.ends_within(rank_id{2}, 60s));
  CHECK(detector.states()[2].load() == static_cast<std::uint32_t>(rank_state::lost));
  std::byte byte{};
  ssize_t got = 0;
  do {
    got = ::recv(end.get(), &byte, 1, 0);
  } while (got < 0 && (errno == EAGAIN || errno == EINTR));
  CHECK(got == -1);
  CHECK(errno == ECONNRESET);
}

TEST_CASE("mesh: a rank that ends says all before it goes") {
  const time_limit limit;
  int pair[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
  std::vector<connection> of_0(2);
  std::vector<connection> of_1(2);
  of_0[1] = unique_fd{pair[0]};
  of_1[0] = unique_fd{pair[1]};
  auto zero = std::make_unique<tcp_failure_detector>(rank_id{0}, std::move(of_0));
  tcp_failure_detector one{rank_id{1}, std::move(of_1)};
  zero->become_mesh(std::vector<connection>(2));
  one.become_mesh(std::vector<connection>(2));
  constexpr int count = 400;
  int heard = 0;
  (void)one.subscribe({.take = [&](rank_id, auto) { ++heard; }});
  const std::vector<std::byte> message(1056);  // More than the socket takes at once.
  for (int i = 0; i < count; ++i) zero->publish(0, message);
  std::thread listener{[&] { CHECK(one.ends_within(rank_id{0}, 60s)); }};
  zero->tell(rank_state::left);
  zero.reset();
  listener.join();
  CHECK(heard == count);
  CHECK(one.states()[0].load() == static_cast<std::uint32_t>(rank_state::left));
}

TEST_CASE("mesh: a rank that reads nothing is lost once too much waits for it") {
  const time_limit limit;
  rank_1 me;
  std::vector<std::byte> taken(news::head_bytes + bulletin::most_bytes);
  const std::vector<std::byte> message(bulletin::most_bytes);
  constexpr std::size_t most = std::size_t{64} << 20U;
  std::size_t published = 0;
  for (; published <= most; published += taken.size()) {
    CHECK(me.members->state(rank_id{2}) == rank_state::running);
    me.detector->publish(0, message);
    require(read_all(me.ends[0], taken), "what rank 0 reads");
  }
  for (; published <= most + (std::size_t{8} << 20U); published += taken.size()) {
    me.detector->publish(0, message);
    require(read_all(me.ends[0], taken), "what rank 0 reads");
  }
  CHECK(me.members->fate(rank_id{2}) == "rank 2 is out of reach");
  CHECK(me.members->fate(rank_id{0}) == "rank 0 runs");
}

TEST_CASE("mesh: a rank that speaks without end does not keep another in a look") {
  const time_limit limit;
  rank_1 me;
  int heard = 0;
  const auto say = [&] { send_bytes(me.ends[2], encoded(0, news::is_message | 5U, "hello")); };
  const auto channel = me.detector->subscribe({.take = [&](rank_id, auto) {
    ++heard;
    say();
  }});
  say();
  me.detector->look();
  const int first = heard;
  CHECK(first > 0);
  me.detector->look();
  CHECK(heard > first);
  me.detector->unsubscribe(channel);
  CHECK(me.members->fate(rank_id{2}) == "rank 2 runs");
}

TEST_CASE("mesh: a rank without memory for its last words loses all others") {
  const time_limit limit;
  rank_1 me;
  (void)me.detector->subscribe(
      {.take = nullptr, .last_words = [](rank_id) -> std::vector<std::vector<std::byte>> {
         throw std::bad_alloc{};
       }});
  me.ends[2].reset();
  CHECK(me.members->fate(rank_id{2}) == "rank 2 died");
  CHECK(me.members->fate(rank_id{0}) == "rank 0 is out of reach");
}

TEST_CASE("mesh: offers that are none are refused") {
  const time_limit limit;
  const auto words = std::make_unique<std::atomic<std::uint32_t>[]>(3);
  for (const std::size_t rank : {0U, 1U, 2U}) {
    CAPTURE(rank);
    const peerbus::membership members{rank_id{rank}, 3, words.get(), nullptr};
    peerbus::detail::tcp_mesh mesh{mesh_seat(rank, 3, 1), patience()};
    const auto own = mesh.offer();
    const std::vector<std::byte> whole(32);
    const auto refusal = [&](const std::vector<std::vector<std::byte>>& offers) {
      const std::vector<std::span<const std::byte>> given{offers.begin(), offers.end()};
      return error_of([&] { (void)mesh.connect(given, members, deadline::after(100ms)); });
    };
    for (const std::size_t short_one : {0U, 1U, 2U})
      for (const std::size_t bytes : {0U, 15U, 17U}) {
        CAPTURE(short_one);
        CAPTURE(bytes);
        std::vector<std::vector<std::byte>> offers(3, whole);
        offers[short_one].resize(bytes);
        const auto caught = refusal(offers);
        CHECK(caught.code() == errc::system);
        CHECK(contains(caught.what(),
                       peerbus::detail::concat(rank_id{short_one}, " came in ", bytes, " bytes")));
      }
    const auto caught = refusal({whole, whole});
    CHECK(caught.code() == errc::system);
    CHECK(contains(caught.what(), "2 places came, expected 3"));
  }
}

TEST_CASE("mesh: who is hung up on after its greeting calls again") {
  const time_limit limit;
  peerbus::detail::tcp_mesh caller{mesh_seat(2, 3, 1), patience()};
  const auto port = free_tcp_port();
  const unique_fd listener = squat(port);
  peerbus::detail::offered_place place;
  place.address = "127.0.0.1";
  place.port = port;
  std::vector<std::vector<std::byte>> offers(3, std::vector<std::byte>(16));
  for (auto& offer : offers) {
    const auto bytes = place.encode();
    offer.insert(offer.end(), bytes.begin(), bytes.end());
  }
  std::thread called{[&] {
    // Rank 1, which loses its first caller.
    for (int attempt = 0; attempt < 2; ++attempt) {
      unique_fd socket{::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC)};
      connection link = secured(std::move(socket), tls_layer::end::accepting);
      require(shake_hands(link) == handshake::done, "a handshake");
      hello::message greeting{};
      require(read_all(link, greeting), "a greeting");
      if (attempt == 0) continue;
      require(link.send(std::array{std::byte{1}}) == 1, "an answer");
      std::byte word{};
      require(read_all(link, std::span{&word, 1}), "a word over the connection");
    }
  }};
  const auto words = std::make_unique<std::atomic<std::uint32_t>[]>(3);
  const peerbus::membership members{rank_id{2}, 3, words.get(), nullptr};
  const std::vector<std::span<const std::byte>> given{offers.begin(), offers.end()};
  auto links = caller.connect(given, members, patience());
  CHECK(links[1].send(std::array{std::byte{2}}) == 1);
  called.join();
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
