// SPDX-License-Identifier: MIT
// ctest: timeout=180 waits
//
// Somebody between two ranks who changes bytes on their way.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/bootstrap/tcp.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/unique_fd.hpp>

#include "tcp_support.hpp"

namespace tcp_tampering_test {

using namespace std::chrono_literals;
using namespace test;
using peerbus::rank_id;
using peerbus::rank_state;

namespace {

enum direction : std::size_t { to_rank_0 = 0, from_rank_0 = 1 };

/// Which bytes are changed. Shared with the process in the middle.
struct plan {
  std::atomic<std::size_t> channel;
  std::atomic<std::size_t> way;
  /// The first byte to change, counted from the begin of the connection.
  std::atomic<std::size_t> from_byte;
  /// Changes the next byte that comes, and all behind it.
  std::atomic<bool> at_once;
};

/// One connection through the process in the middle.
struct passage {
  std::array<unique_fd, 2> ends;  ///< of the rank, of rank 0
  std::array<std::size_t, 2> passed{};
  std::size_t channel;
};

/// Passes on what comes at `ends[way]`. Returns: false once that end has hung up.
bool pass_on(passage& of, std::size_t way, const plan& changes) {
  auto bytes = take_all(of.ends[way]);
  if (bytes.empty()) return false;
  if (of.channel == changes.channel && way == changes.way) {
    const std::size_t first = changes.at_once ? of.passed[way] : changes.from_byte.load();
    for (std::size_t i = 0; i < bytes.size(); ++i)
      if (of.passed[way] + i >= first) bytes[i] ^= std::byte{1};
  }
  of.passed[way] += bytes.size();
  send_bytes(of.ends[1 - way], bytes);
  return true;
}

/// A process that takes callers at `port`, and passes their bytes to `target` and back.
pid_t stand_between(std::uint16_t port, std::uint16_t target, const plan& changes) {
  return in_child([&, port, target] {
    const auto listening = squat(port);
    std::vector<passage> passages;
    std::size_t calls = 0;
    for (;;) {
      std::vector<pollfd> entries{{listening.get(), POLLIN, 0}};
      for (const auto& one : passages)
        for (const auto& end : one.ends) entries.push_back({end.get(), POLLIN, 0});
      (void)::poll(entries.data(), entries.size(), -1);
      for (std::size_t i = passages.size(); i-- != 0;)
        for (const auto way : {to_rank_0, from_rank_0})
          if (entries[1 + 2 * i + way].revents != 0 && !pass_on(passages[i], way, changes)) {
            passages.erase(passages.begin() + static_cast<std::ptrdiff_t>(i));
            break;
          }
      if (entries[0].revents != 0) {
        unique_fd caller{::accept(listening.get(), nullptr, nullptr)};
        unique_fd onward = call_at(target);
        // The rank makes its second connection once the first has shaken hands.
        const std::size_t channel = changes.channel == tcp_channel::watch ? calls++ % 2 : 0;
        passages.push_back({{std::move(caller), std::move(onward)}, {}, channel});
      }
    }
    return 0;
  });
}

constexpr std::size_t nowhere = std::size_t{1} << 40;

/// Runs two ranks that reach each other through a process in the middle, which changes the bytes of
/// `channel` that go `way`, from `from_byte` on. Each rank calls `f` with its number, its settings
/// and the plan, in a process of its own.
template <class F>
void run_tampered(tcp_channel channel, direction way, std::size_t from_byte, F f) {
  shared<plan> changes;
  changes->channel = channel;
  changes->way = way;
  changes->from_byte = from_byte;
  const auto port = free_tcp_port();
  const auto in_between = free_tcp_port();
  const pid_t between = stand_between(in_between, port, *changes);
  std::vector<pid_t> ranks;
  for (const std::size_t rank : {0U, 1U})
    ranks.push_back(in_child([&] {
      f(rank, tcp_seat(rank, 2, rank == 0 ? port : in_between), *changes);
      return 0;
    }));
  CHECK(all_as_expected(ranks));
  ::kill(between, SIGKILL);
  CHECK(status_of(between) == 137);
}

}  // namespace

TEST_CASE("tampering: a byte that is changed while the ranks meet is not believed") {
  const time_limit limit;
  // In every part of the first flights, of the proofs behind them, of the hello and the welcome.
  for (const auto way : {to_rank_0, from_rank_0})
    for (const std::size_t byte : {5U, 20U, 100U, 180U, 250U, 290U, 330U, 360U}) {
      CAPTURE(way);
      CAPTURE(byte);
      run_tampered(tcp_channel::collectives, way, byte,
                   [](std::size_t, const tcp_settings& settings, plan&) {
                     const auto caught = error_of([&] {
                       tcp_bootstrap boot{settings, deadline::after(500ms)};
                       (void)boot.allgather({}, deadline::after(500ms), "together");
                     });
                     require(caught.code() != errc::ok, "an error");
                   });
    }
}

TEST_CASE("tampering: a byte that is changed in a collective ends it on both sides") {
  const time_limit limit;
  for (const auto way : {to_rank_0, from_rank_0}) {
    CAPTURE(way);
    shared<std::atomic<int>> met;
    const auto collective = [&](std::size_t rank, const tcp_settings& settings, plan& changes) {
      tcp_bootstrap boot{settings, patience()};
      const auto given = boot.allgather({bytes_of("honest"), {}}, patience(), "unharmed");
      require(text_of(given[1 - rank].bytes) == "honest", "honest bytes");
      ++*met;
      for (const auto until = patience(); met->load() < 2 && !until.expired();) ::usleep(1000);
      changes.at_once = true;
      const auto start = deadline::clock::now();
      const auto caught = error_of([&] {
        (void)boot.allgather({bytes_of("changed"), {}}, patience(), "changed");
        // Rank 0 learns in its next collective that a rank did not get the result.
        require(rank == 0 && way == from_rank_0, "no result of changed bytes");
        (void)boot.allgather({}, patience(), "after it");
      });
      require(caught.code() == errc::system || caught.code() == errc::peer_dead, caught.what());
      require(contains(caught.what(), rank == 0 ? "rank 1" : "rank 0"), caught.what());
      require(deadline::clock::now() - start < 30s, "an end long before the deadline");
    };
    run_tampered(tcp_channel::collectives, way, nowhere, collective);
  }
}

TEST_CASE("tampering: changed news are not believed, and their rank is out of reach") {
  const time_limit limit;
  shared<std::atomic<int>> heard;
  const auto tell = [&](std::size_t rank, const tcp_settings& settings, plan& changes) {
    tcp_bootstrap boot{settings, patience()};
    (void)boot.allgather({}, patience(), "together");
    const auto& members = boot.members();
    if (rank == 1) {
      changes.at_once = true;
      members->announce(rank_state::left);
      for (const auto until = patience(); heard->load() == 0 && !until.expired();) ::usleep(1000);
      return;
    }
    require(members->ends_within(rank_id{1}, 60s), "an end");
    require(members->fate(rank_id{1}) == "rank 1 is out of reach", members->fate(rank_id{1}));
    ++*heard;
  };
  run_tampered(tcp_channel::watch, to_rank_0, nowhere, tell);
}

}  // namespace tcp_tampering_test
