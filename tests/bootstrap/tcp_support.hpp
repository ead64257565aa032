// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/detail/connection.hpp>
#include <peerbus/bootstrap/detail/hello.hpp>
#include <peerbus/bootstrap/detail/tcp_rendezvous.hpp>
#include <peerbus/bootstrap/detail/tcp_socket.hpp>
#include <peerbus/bootstrap/detail/tcp_tls.hpp>
#include <peerbus/bootstrap/tcp.hpp>
#include <peerbus/core/unique_fd.hpp>

#include "support.hpp"

namespace test {

using peerbus::tcp_bootstrap;
using peerbus::tcp_settings;
using peerbus::unique_fd;
using peerbus::detail::connection;
using peerbus::detail::handshake;
using peerbus::detail::hello;
using peerbus::detail::tcp_channel;
using peerbus::detail::tls_group;
using peerbus::detail::tls_layer;

/// A rank in a process of its own that expects the rendezvous to fail with `code` and all of
/// `parts`.
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

inline hello hello_of(std::size_t rank, std::size_t size,
                      tcp_channel channel = tcp_channel::collectives) {
  hello said;
  said.rank = static_cast<std::uint32_t>(rank);
  said.size = static_cast<std::uint32_t>(size);
  said.channel = static_cast<std::uint32_t>(channel);
  return said;
}

/// `socket` as an end of TLS by a process that knows `secret`.
inline connection secured(unique_fd socket, tls_layer::end which,
                          const char* secret = test_secret) {
  return {std::move(socket),
          std::make_unique<tls_layer>(std::make_shared<const tls_group>(secret), which)};
}

inline void wait_to_read(const connection& from) {
  pollfd entry{from.get(), POLLIN, 0};
  (void)::poll(&entry, 1, 60'000);
}

/// Shakes hands with a peer that does the same elsewhere.
inline handshake shake_hands(connection& with) {
  for (const auto until = patience(); !until.expired(); wait_to_read(with))
    if (const auto how = with.shake_hands(); how != handshake::more) return how;
  throw std::runtime_error{"expected an end of the handshake"};
}

/// Reads `bytes` whole. Returns: whether they came.
inline bool read_all(connection& from, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = from.receive(bytes);
    if (got < 0 && errno == EAGAIN) {
      wait_to_read(from);
      continue;
    }
    if (got <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
  return true;
}

inline void send_bytes(connection& to, std::span<const std::byte> bytes) {
  (void)to.send(bytes);  // The other end may have hung up.
}

/// Calls and says `said`, as a rank that knows `secret`. Returns: the connection.
inline connection call_as(std::uint16_t port, const hello& said, const char* secret = test_secret) {
  connection call = secured(call_at(port), tls_layer::end::calling, secret);
  require(shake_hands(call) == handshake::done, "a handshake");
  send_bytes(call, said.encode());
  return call;
}

/// All that has come to `socket` and not been read.
inline std::vector<std::byte> take_all(const unique_fd& socket) {
  std::vector<std::byte> bytes(1 << 16);
  const ssize_t got = ::recv(socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  bytes.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return bytes;
}

/// The bytes that a rank that knows `secret` says first.
inline std::vector<std::byte> first_flight(const char* secret = test_secret) {
  int pair[2] = {-1, -1};
  require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0, "a socket pair");
  const unique_fd other{pair[1]};
  connection calling = secured(unique_fd{pair[0]}, tls_layer::end::calling, secret);
  require(calling.shake_hands() == handshake::more, "an unfinished handshake");
  return take_all(other);
}

/// A socket that listens at `port` of 127.0.0.1.
inline unique_fd squat(std::uint16_t port) {
  auto socket =
      peerbus::detail::listen_at(peerbus::detail::resolve("127.0.0.1", port, patience())[0]);
  require(::fcntl(socket.get(), F_SETFL, 0) == 0, "a socket that waits for callers");
  return socket;
}

}  // namespace test
