// SPDX-License-Identifier: MIT
// ctest: timeout=180
//
// Strangers who call at the port of a group, and strangers who play rank 0.
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/detail/frame.hpp>
#include <peerbus/bootstrap/detail/tcp_callers.hpp>
#include <peerbus/bootstrap/tcp.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/unique_fd.hpp>

#include "tcp_support.hpp"

using namespace std::chrono_literals;
using test::all_as_expected;
using test::belongings;
using test::call_at;
using test::challenge;
using test::contains;
using test::errc;
using test::expects;
using test::free_tcp_port;
using test::group_secret;
using test::hello_of;
using test::in_child;
using test::joins;
using test::patience;
using test::proved_hello;
using test::read_all;
using test::require;
using test::send_bytes;
using test::squat;
using test::tcp_bootstrap;
using test::tcp_hello;
using test::tcp_seat;
using test::test_secret;
using test::time_limit;
using test::unique_fd;
using test::verdict;

namespace {

/// What rank 0 answers to a hello. Empty if it hangs up instead.
std::vector<std::byte> answer_to(std::uint16_t port, const tcp_hello::message& said) {
  const unique_fd call = call_at(port);
  challenge::message challenged;
  require(read_all(call, challenged), "a challenge");
  send_bytes(call, said);
  verdict::message answer;
  if (!read_all(call, answer)) return {};
  return {answer.begin(), answer.end()};
}

bool is(const std::vector<std::byte>& answer, verdict::kind kind) {
  return answer.size() == verdict::message{}.size() && answer[11] == static_cast<std::byte>(kind);
}

}  // namespace

TEST_CASE("strangers: neither break nor delay the meeting") {
  const time_limit limit;
  const belongings before;
  const auto port = free_tcp_port();
  std::vector<pid_t> ranks{joins(tcp_seat(0, 3, port)), joins(tcp_seat(1, 3, port))};
  std::mt19937_64 random{7};
  std::vector<unique_fd> silent;
  for (int i = 0; i < 400; ++i) {
    unique_fd call = call_at(port);
    std::array<std::byte, 256> noise;
    for (auto& byte : noise) byte = static_cast<std::byte>(random());
    const auto some = std::span{noise}.first(random() % noise.size());
    switch (i % 5) {
      case 0: break;  // hangs up at once
      case 1: silent.push_back(std::move(call)); break;
      case 2: send_bytes(call, some); break;
      case 3:  // speaks like a rank, and stops in the middle
        std::copy(peerbus::detail::tcp_magic.begin(), peerbus::detail::tcp_magic.end(),
                  noise.begin());
        send_bytes(call, std::span{noise}.first(100));
        silent.push_back(std::move(call));
        break;
      default: send_bytes(call, std::span{noise}.first(5)); silent.push_back(std::move(call));
    }
  }
  ranks.push_back(joins(tcp_seat(2, 3, port)));
  CHECK(all_as_expected(ranks));
  silent.clear();
  CHECK(belongings{} == before);
}

TEST_CASE("strangers: who drips bytes, or says nothing, is hung up on") {
  const time_limit limit;
  const auto port = free_tcp_port();
  const pid_t rank_0 = joins(tcp_seat(0, 2, port));
  const unique_fd silent = call_at(port);
  const unique_fd dripping = call_at(port);
  challenge::message challenged;
  REQUIRE(read_all(silent, challenged));
  REQUIRE(read_all(dripping, challenged));
  // A whole hello would take it a minute. It ends by rank 0's limit, or this test by its own.
  const auto said = proved_hello(hello_of(1, 2), challenged);
  std::size_t dripped = 0;
  char byte = 0;
  while (::recv(dripping.get(), &byte, 1, MSG_DONTWAIT) != 0 && dripped < 100) {
    send_bytes(dripping, std::span{said}.subspan(dripped++, 1));
    ::usleep(500'000);
  }
  CHECK(dripped < 100);
  CHECK(::recv(silent.get(), &byte, 1, 0) == 0);
  CHECK(all_as_expected({rank_0, joins(tcp_seat(1, 2, port))}));
}

TEST_CASE("strangers: a hello is worth nothing without the secret, or in another connection") {
  const time_limit limit;
  const auto port = free_tcp_port();
  const pid_t rank_0 = joins(tcp_seat(0, 2, port));
  challenge::message challenged;
  {
    const unique_fd call = call_at(port);
    REQUIRE(read_all(call, challenged));
  }
  // As it was said to an earlier challenge.
  CHECK(is(answer_to(port, proved_hello(hello_of(1, 2), challenged)), verdict::kind::other_secret));
  CHECK(is(answer_to(port, hello_of(1, 2).encode()), verdict::kind::other_secret));
  CHECK(is(answer_to(port, proved_hello(hello_of(1, 2), challenged, "")),
           verdict::kind::other_secret));
  CHECK(is(answer_to(port, proved_hello(hello_of(0, 1'000'000), challenged)),
           verdict::kind::other_secret));
  // Another build without the secret is no reason to end the meeting.
  auto other_build = hello_of(1, 2);
  other_build.version.protocol = 99;
  CHECK(is(answer_to(port, other_build.encode()), verdict::kind::other_secret));
  // Every bit of a hello is under its proof.
  for (std::size_t bit = 0; bit < 8 * sizeof(tcp_hello::message); bit += 5) {
    const unique_fd call = call_at(port);
    REQUIRE(read_all(call, challenged));
    auto said = proved_hello(hello_of(1, 2), challenged);
    said[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
    send_bytes(call, said);
    verdict::message answer;
    const bool answered = read_all(call, answer);
    // Without the magic it is not even answered.
    CHECK(answered == (bit / 8 >= peerbus::detail::tcp_magic.size()));
    if (answered) CHECK(is({answer.begin(), answer.end()}, verdict::kind::other_secret));
  }
  CHECK(all_as_expected({rank_0, joins(tcp_seat(1, 2, port))}));
}

TEST_CASE("strangers: rank 0 asks each caller for something else") {
  const time_limit limit;
  const auto port = free_tcp_port();
  const pid_t rank_0 = joins(tcp_seat(0, 2, port));
  std::vector<challenge::message> seen;
  for (int i = 0; i < 50; ++i) {
    const unique_fd call = call_at(port);
    challenge::message challenged;
    REQUIRE(read_all(call, challenged));
    CHECK(std::find(seen.begin(), seen.end(), challenged) == seen.end());
    seen.push_back(challenged);
  }
  CHECK(all_as_expected({rank_0, joins(tcp_seat(1, 2, port))}));
}

TEST_CASE("strangers: who plays rank 0 gains nothing, and is found out") {
  const time_limit limit;
  enum { nonsense, reflected, other_secret, cut, of_another_hello };
  for (const int how : {nonsense, reflected, other_secret, cut, of_another_hello}) {
    CAPTURE(how);
    const auto port = free_tcp_port();
    const auto listening = squat(port);
    const pid_t rank = how == cut ? expects(tcp_seat(1, 2, port), 1s, errc::timed_out, {"hung up"})
                                  : expects(tcp_seat(1, 2, port), 60s, errc::mismatch,
                                            {"the secret differs", "another than this rank"});
    for (bool again = true; again;) {
      const unique_fd call{::accept(listening.get(), nullptr, nullptr)};
      challenge asked;
      asked.has_secret = true;
      const auto challenged = asked.encode();
      send_bytes(call, challenged);
      tcp_hello::message said;
      REQUIRE(read_all(call, said));
      peerbus::detail::sha256::digest proof{};
      if (how == reflected)
        std::copy_n(said.begin() + tcp_hello::proof_at, proof.size(), proof.begin());
      if (how == other_secret)
        proof = group_secret{"another secret for tests"}.proof_of_rank_0(challenged, said);
      if (how == of_another_hello) {
        auto other = said;
        other[60] ^= std::byte{1};
        proof = group_secret{test_secret}.proof_of_rank_0(challenged, other);
      }
      const auto answer = verdict::encode(verdict::kind::welcome, proof);
      send_bytes(call, std::span{answer}.first(how == cut ? 20 : answer.size()));
      // Hung up on in the middle of the answer, a rank calls again until its deadline.
      pollfd entry{listening.get(), POLLIN, 0};
      again =
          how == cut && (::shutdown(call.get(), SHUT_RDWR), true) && ::poll(&entry, 1, 1500) == 1;
    }
    CHECK(all_as_expected({rank}));
  }
}

TEST_CASE("strangers: do not use up the descriptors that the ranks need") {
  const time_limit limit;
  const auto port = free_tcp_port();
  const pid_t rank_0 = in_child([=] {
    const rlimit few{24, 24};
    require(::setrlimit(RLIMIT_NOFILE, &few) == 0, "few descriptors");
    tcp_bootstrap boot{tcp_seat(0, 2, port), patience()};
    (void)boot.allgather({}, patience(), "numbers");
    return 0;
  });
  std::vector<unique_fd> silent;
  silent.reserve(60);
  for (int i = 0; i < 60; ++i) silent.push_back(call_at(port));
  const pid_t rank_1 = in_child([=] {
    tcp_bootstrap boot{tcp_seat(1, 2, port), patience()};
    (void)boot.allgather({}, patience(), "numbers");
    return 0;
  });
  CHECK(all_as_expected({rank_0, rank_1}));
}

TEST_CASE("strangers: there are never more of them than there is room for") {
  const time_limit limit;
  const auto port = free_tcp_port();
  const auto listening =
      peerbus::detail::listen_at(peerbus::detail::resolve("127.0.0.1", port, patience())[0]);
  const group_secret secret{test_secret};
  peerbus::detail::tcp_callers callers{secret, 10};
  std::vector<unique_fd> calls;
  calls.reserve(200);
  for (int i = 0; i < 200; ++i) {
    calls.push_back(call_at(port));
    callers.accept_some(listening);
    CHECK(callers.size() <= 10);
  }
  CHECK(callers.size() == 10);
  CHECK(contains(callers.describe_strangers(), "200 callers were no ranks"));
  // The first 190 were hung up on.
  std::vector<pollfd> entries;
  callers.append_entries(entries);
  CHECK(entries.size() == 10);
}
