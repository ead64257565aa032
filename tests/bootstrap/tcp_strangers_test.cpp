// SPDX-License-Identifier: MIT
// ctest: timeout=180 waits
//
// Strangers who call at the port of a group, and strangers who play rank 0.
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/detail/callers.hpp>
#include <peerbus/bootstrap/detail/tcp_rendezvous.hpp>
#include <peerbus/bootstrap/tcp.hpp>
#include <peerbus/core/unique_fd.hpp>

#include "tcp_support.hpp"

namespace tcp_strangers_test {

using namespace std::chrono_literals;
using namespace test;

namespace {

/// What rank 0 says in its first flight to a caller that says `flight`. Empty if it hangs up.
std::vector<std::byte> answer_to(std::uint16_t port, std::span<const std::byte> flight) {
  const unique_fd call = call_at(port);
  send_bytes(call, flight);
  pollfd entry{call.get(), POLLIN, 0};
  require(::poll(&entry, 1, 60'000) == 1, "an answer");
  return take_all(call);
}

/// All bytes of a rank that joins in earnest, as someone on the network can record them.
std::vector<std::byte> recorded_join() {
  std::array<std::array<unique_fd, 2>, 2> pairs;
  for (auto& ends : pairs) {
    int pair[2];
    require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0, "a socket pair");
    ends = {unique_fd{pair[0]}, unique_fd{pair[1]}};
  }
  connection rank = secured(std::move(pairs[0][0]), tls_layer::end::calling);
  connection rank_0 = secured(std::move(pairs[1][0]), tls_layer::end::accepting);
  std::vector<std::byte> recorded;
  for (int turn = 0; turn < 10; ++turn) {
    const auto how = rank.shake_hands();
    if (how == handshake::done) (void)rank.send(hello_of(1, 2).encode());
    const auto said = take_all(pairs[0][1]);
    recorded.insert(recorded.end(), said.begin(), said.end());
    send_bytes(pairs[1][1], said);
    const auto answered = rank_0.shake_hands();
    if (how == handshake::done) {
      hello::message greeting;
      require(answered == handshake::done && read_all(rank_0, greeting), "a rank that joins");
      return recorded;
    }
    send_bytes(pairs[0][1], take_all(pairs[1][1]));
  }
  throw std::runtime_error{"expected an end of the handshake"};
}

/// TLS by a certificate that nobody has signed, as a web server might have it.
class certified_server {
 public:
  certified_server()
      : context_{::SSL_CTX_new(::TLS_method())},
        key_{::EVP_PKEY_Q_keygen(nullptr, nullptr, "EC", "P-256")},
        certificate_{::X509_new()} {
    ::ASN1_INTEGER_set(::X509_get_serialNumber(certificate_), 1);
    ::X509_gmtime_adj(::X509_getm_notBefore(certificate_), -1000);
    ::X509_gmtime_adj(::X509_getm_notAfter(certificate_), 1000);
    ::X509_set_pubkey(certificate_, key_);
    require(::X509_sign(certificate_, key_, ::EVP_sha256()) > 0 &&
                ::SSL_CTX_use_certificate(context_, certificate_) == 1 &&
                ::SSL_CTX_use_PrivateKey(context_, key_) == 1,
            "a certificate");
  }
  certified_server(const certified_server&) = delete;
  certified_server& operator=(const certified_server&) = delete;
  ~certified_server() {
    ::X509_free(certificate_);
    ::EVP_PKEY_free(key_);
    ::SSL_CTX_free(context_);
  }

  /// Returns whether the caller believes it.
  [[nodiscard]] bool accept(const unique_fd& call) const {
    ::SSL* const end = ::SSL_new(context_);
    ::SSL_set_fd(end, call.get());
    const bool believed = ::SSL_accept(end) == 1;
    ::SSL_free(end);
    return believed;
  }

 private:
  ::SSL_CTX* context_;
  ::EVP_PKEY* key_;
  ::X509* certificate_;
};

}  // namespace

TEST_CASE("strangers: neither break nor delay the rendezvous") {
  const time_limit limit;
  const belongings before;
  const auto port = free_tcp_port();
  std::vector<pid_t> ranks{joins(tcp_seat(0, 3, port)), joins(tcp_seat(1, 3, port))};
  std::mt19937_64 random{7};
  const auto flight = first_flight();
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
        send_bytes(call, std::span{flight}.first(100));
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
  // A whole flight would take it a minute. It ends by rank 0's limit, or this test by its own.
  const auto said = first_flight();
  REQUIRE(said.size() > 150);
  std::size_t dripped = 0;
  char byte = 0;
  while (::recv(dripping.get(), &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN && dripped < 150) {
    send_bytes(dripping, std::span{said}.subspan(dripped++, 1));
    ::usleep(500'000);
  }
  CHECK(dripped < 150);
  CHECK(::recv(silent.get(), &byte, 1, 0) == 0);
  CHECK(all_as_expected({rank_0, joins(tcp_seat(1, 2, port))}));
}

TEST_CASE("strangers: who speaks without end before a handshake is hung up on") {
  const time_limit limit;
  const auto port = free_tcp_port();
  const pid_t rank_0 = joins(tcp_seat(0, 2, port));
  const unique_fd call = call_at(port);
  // A first message of 100 KiB, in records of 4 KiB.
  std::vector<std::byte> record(5 + 4096);
  const std::array<std::uint8_t, 9> header{0x16, 3, 1, 0x10, 0, 1, 0x01, 0x90, 0};
  std::memcpy(record.data(), header.data(), header.size());
  ssize_t sent = 0;
  for (int records = 0; records < 25; ++records) {
    const ssize_t put = ::send(call.get(), record.data(), record.size(), MSG_NOSIGNAL);
    if (put < 0) break;
    sent += put;
    std::memset(record.data() + 5, 0, 4);
    ::usleep(20'000);
  }
  CHECK(sent < 50'000);
  CHECK(all_as_expected({rank_0, joins(tcp_seat(1, 2, port))}));
}

TEST_CASE("strangers: without the secret nobody gets further than the first flight") {
  const time_limit limit;
  const auto port = free_tcp_port();
  const pid_t rank_0 = joins(tcp_seat(0, 2, port));
  const auto how_fares = [port](const char* secret) {
    connection call = secured(call_at(port), tls_layer::end::calling, secret);
    return shake_hands(call);
  };
  CHECK(how_fares("another secret for tests") == handshake::other_secret);
  CHECK(how_fares("") == handshake::no_secret);
  CHECK(how_fares("a secret for tests only.") == handshake::other_secret);
  CHECK(all_as_expected({rank_0, joins(tcp_seat(1, 2, port))}));
}

TEST_CASE("strangers: recorded bytes of a rank are worth nothing in another connection") {
  const time_limit limit;
  const auto port = free_tcp_port();
  const pid_t rank_0 = joins(tcp_seat(0, 2, port));
  const auto flight = first_flight();
  // Rank 0 answers, as it cannot know better yet, and each time with other keys.
  const auto once = answer_to(port, flight);
  const auto again = answer_to(port, flight);
  CHECK(once.size() > 100);
  CHECK(again.size() > 100);
  CHECK(once != again);
  // Behind its answer it notices.
  const auto recorded = recorded_join();
  REQUIRE(recorded.size() > flight.size());
  const unique_fd call = call_at(port);
  send_bytes(call, recorded);
  std::array<std::byte, 4096> answers;
  ssize_t got = 0;
  do {
    got = ::recv(call.get(), answers.data(), answers.size(), 0);
  } while (got > 0);
  CHECK((got == 0 || errno == ECONNRESET));
  // A flight with any byte changed gets no answer but an alert, which is 7 bytes.
  for (std::size_t byte = 5; byte < flight.size(); byte += 3) {
    CAPTURE(byte);
    auto changed = flight;
    changed[byte] ^= std::byte{0x10};
    CHECK(answer_to(port, changed).size() <= 7);
  }
  CHECK(all_as_expected({rank_0, joins(tcp_seat(1, 2, port))}));
}

TEST_CASE("strangers: who plays rank 0 gains nothing, and is found out") {
  const time_limit limit;
  enum { nonsense, reflected, other_secret, certified, cut };
  const certified_server web;
  for (const int how : {nonsense, reflected, other_secret, certified, cut}) {
    CAPTURE(how);
    const auto port = free_tcp_port();
    const auto listening = squat(port);
    const auto settings = tcp_seat(1, 2, port);
    const pid_t rank =
        how == cut ? expects(settings, 1s, errc::timed_out, {"hung up"})
        : how == other_secret
            ? expects(settings, 60s, errc::mismatch, {"the secret differs", "another than this"})
            : expects(settings, 60s, errc::system, {"does not speak as rank 0", "MASTER_PORT"});
    for (bool again = true; again;) {
      unique_fd call{::accept(listening.get(), nullptr, nullptr)};
      pollfd entry{call.get(), POLLIN, 0};
      REQUIRE(::poll(&entry, 1, 60'000) == 1);
      again = false;
      if (how == other_secret) {
        connection end =
            secured(std::move(call), tls_layer::end::accepting, "another secret for tests");
        CHECK(shake_hands(end) == handshake::other_secret);
      } else if (how == certified) {
        CHECK_FALSE(web.accept(call));
      } else {
        const auto said = take_all(call);
        const auto answer = how == nonsense ? std::vector<std::byte>(said.size()) : said;
        send_bytes(call, std::span{answer}.first(how == cut ? 4 : answer.size()));
        // Hung up on in the middle of the answer, a rank calls again until its deadline.
        if (how == cut) ::shutdown(call.get(), SHUT_RDWR);
        pollfd next{listening.get(), POLLIN, 0};
        again = how == cut && ::poll(&next, 1, 1500) == 1;
        if (how != cut) (void)!::recv(call.get(), &next, 1, 0);
      }
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

namespace {

/// Rank 0 of two while it takes calls, of up to 10 callers at a time.
struct host_of_two {
  std::uint16_t port = free_tcp_port();
  unique_fd listening =
      peerbus::detail::listen_at(peerbus::detail::resolve("127.0.0.1", port, patience())[0]);
  peerbus::detail::tcp_rendezvous_place place{tcp_seat(0, 2, port), patience()};
  peerbus::detail::callers callers{place, 10};
};

}  // namespace

TEST_CASE("strangers: there are never more of them than there is room for") {
  const time_limit limit;
  host_of_two host;
  std::vector<unique_fd> calls;
  calls.reserve(200);
  for (int i = 0; i < 200; ++i) {
    calls.push_back(call_at(host.port));
    host.callers.accept_some(host.listening);
    CHECK(host.callers.size() <= 10);
  }
  CHECK(host.callers.size() == 10);
  CHECK(contains(host.callers.describe_strangers(), "200 callers were no ranks"));
  // The first 190 were hung up on.
  std::vector<pollfd> entries;
  host.callers.append_entries(entries);
  CHECK(entries.size() == 10);
}

TEST_CASE("strangers: a lack of descriptors is named") {
  const time_limit limit;
  host_of_two host;
  std::vector<unique_fd> calls;
  calls.push_back(call_at(host.port));
  host.callers.accept_some(host.listening);
  REQUIRE(host.callers.size() == 1);
  CHECK_FALSE(contains(host.callers.describe_strangers(), "hang up"));
  calls.push_back(call_at(host.port));

  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit full = before;
  full.rlim_cur = static_cast<rlim_t>(unique_fd{::dup(host.listening.get())}.get());
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &full) == 0);
  host.callers.accept_some(host.listening);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(host.callers.size() == 1);  // The second caller took the place of the first.
  CHECK(contains(host.callers.describe_strangers(),
                 "rank 0 had to hang up on callers: Too many open files (see `ulimit -n`)"));
}

}  // namespace tcp_strangers_test
