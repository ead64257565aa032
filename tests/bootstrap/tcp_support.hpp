// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <peerbus/bootstrap/detail/tcp_handshake.hpp>
#include <peerbus/bootstrap/detail/tcp_socket.hpp>
#include <peerbus/bootstrap/tcp.hpp>
#include <peerbus/core/unique_fd.hpp>

#include "support.hpp"

namespace test {

using peerbus::tcp_bootstrap;
using peerbus::tcp_settings;
using peerbus::unique_fd;
using peerbus::detail::challenge;
using peerbus::detail::group_secret;
using peerbus::detail::tcp_channel;
using peerbus::detail::tcp_hello;
using peerbus::detail::verdict;

/// A rank in a process of its own that expects the meeting to fail with `code` and all of `parts`.
inline pid_t expects(const tcp_settings& settings, deadline::clock::duration span, errc code,
                     const std::vector<std::string>& parts) {
  return in_child([&] {
    const auto caught = error_of([&] { tcp_bootstrap boot{settings, deadline::after(span)}; });
    require(caught.code() == code, std::string{"another code than of: "} + caught.what());
    for (const auto& part : parts)
      require(contains(caught.what(), part), part + " in: " + caught.what());
    return 0;
  });
}

/// A rank in a process of its own that joins, gathers once, and leaves.
inline pid_t joins(const tcp_settings& settings) {
  return in_child([&] {
    tcp_bootstrap boot{settings, patience()};
    const auto given =
        boot.allgather({bytes_of(std::to_string(settings.rank)), {}}, patience(), "numbers");
    for (std::size_t rank = 0; rank < settings.size; ++rank)
      require(text_of(given[rank].bytes) == std::to_string(rank), "the number of each rank");
    return 0;
  });
}

inline bool all_as_expected(const std::vector<pid_t>& children) {
  bool all = true;
  for (const pid_t child : children) all = status_of(child) == 0 && all;
  return all;
}

/// Reads `bytes` whole. Returns: whether they came.
inline bool read_all(const unique_fd& from, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = ::recv(from.get(), bytes.data(), bytes.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
  return true;
}

inline void send_bytes(const unique_fd& to, std::span<const std::byte> bytes) {
  // The other end may have hung up.
  (void)!::send(to.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

/// Connects to `port` of this host, once somebody listens there. Blocks like any plain socket.
inline unique_fd call_at(std::uint16_t port, const char* address = "127.0.0.1") {
  const auto place = peerbus::detail::resolve(address, port, patience());
  for (const auto until = patience(); !until.expired(); ::usleep(1000)) {
    unique_fd socket{::socket(place[0].family(), SOCK_STREAM | SOCK_CLOEXEC, 0)};
    const timeval limit{60, 0};
    (void)::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (::connect(socket.get(), place[0].get(), place[0].size) == 0) return socket;
  }
  throw std::runtime_error{"expected somebody to listen"};
}

inline tcp_hello hello_of(std::size_t rank, std::size_t size,
                          tcp_channel channel = tcp_channel::collectives) {
  tcp_hello hello;
  hello.rank = static_cast<std::uint32_t>(rank);
  hello.size = static_cast<std::uint32_t>(size);
  hello.channel = channel;
  return hello;
}

/// A hello as a rank that knows `secret` says it.
inline tcp_hello::message proved_hello(const tcp_hello& hello, const challenge::message& challenged,
                                       const char* secret = test_secret) {
  auto said = hello.encode();
  const auto proof = group_secret{secret}.proof_of_rank(challenged, said);
  std::copy(proof.begin(), proof.end(), said.begin() + tcp_hello::proof_at);
  return said;
}

/// Calls and says `hello`. Returns: the connection.
inline unique_fd call_as(std::uint16_t port, const tcp_hello& hello) {
  unique_fd call = call_at(port);
  challenge::message challenged;
  require(read_all(call, challenged), "a challenge");
  send_bytes(call, proved_hello(hello, challenged));
  return call;
}

/// A socket that listens at `port` of 127.0.0.1.
inline unique_fd squat(std::uint16_t port) {
  auto socket =
      peerbus::detail::listen_at(peerbus::detail::resolve("127.0.0.1", port, patience())[0]);
  require(::fcntl(socket.get(), F_SETFL, 0) == 0, "a socket that waits for callers");
  return socket;
}

}  // namespace test
