// SPDX-License-Identifier: MIT
#pragma once

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/detail/os.hpp>
#include <peerbus/bootstrap/detail/tcp_socket.hpp>
#include <peerbus/bootstrap/tcp_settings.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/system_error.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus::detail {

/// A place at which ranks meet, offered by the first of them: an address and a port of the network,
/// or the name of an abstract socket of one host.
struct offered_place {
  std::string address;
  std::uint16_t port = 0;
  /// The socket that reserves the port until the first member listens there.
  unique_fd keeper;

  /// Makes a place with a random name, which no other group has.
  /// Throws: `error` system.
  static offered_place on_this_host() {
    offered_place made;
    made.address = draw_digits();
    return made;
  }

  /// Makes a place with a free port of this host, which other ranks reach at `address`. Binds a
  /// socket to the port without listening, so that the system does not give the port to other
  /// processes. Another socket may still listen there if both have SO_REUSEADDR, as the sockets of
  /// `listen_at` have.
  /// Throws: `error` system.
  static offered_place of_network(const std::string& address) {
    for (const int family : {AF_INET6, AF_INET}) {
      unique_fd socket = tcp_socket(family);
      if (!socket) continue;
      set_option(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);
      if (family == AF_INET6) set_option(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
      tcp_address found = any_address(family, 0);
      if (::bind(socket.get(), found.get(), found.size) != 0 ||
          ::getsockname(socket.get(), found.get(), &found.size) != 0)
        continue;
      sockaddr_in start{};  // Both families have the port at the same offset.
      static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));
      std::memcpy(&start, &found.bytes, sizeof start);
      return {address, ntohs(start.sin_port), std::move(socket)};
    }
    throw system_failure("finding a free TCP port to meet at", errno);
  }

  /// Encodes the place. Wire form: the port in 2 bytes of the host's byte order, then the address.
  [[nodiscard]] std::vector<std::byte> encode() const {
    // Not by `insert` or `std::copy`, of which g++ 12 warns wrongly where it inlines this.
    std::vector<std::byte> bytes(sizeof port + address.size());
    std::memcpy(bytes.data(), &port, sizeof port);
    std::memcpy(bytes.data() + sizeof port, address.data(), address.size());
    return bytes;
  }
  /// Decodes a place.
  /// Throws: `error` system if there are too few `bytes`.
  static offered_place decode(std::span<const std::byte> bytes) {
    offered_place read;
    if (bytes.size() <= sizeof read.port)
      throw error{errc::system, concat("the place to meet at came in ", bytes.size(),
                                       " bytes, expected more than ", sizeof read.port)};
    std::memcpy(&read.port, bytes.data(), sizeof read.port);
    const auto text = bytes.subspan(sizeof read.port);
    read.address.assign(reinterpret_cast<const char*>(text.data()), text.size());
    return read;
  }

  ///@{
  /// Encodes and decodes as `encode` and `decode`, for ranks that must all give the same number of
  /// bytes. That number is `filled_bytes`. Zeros follow the address. Bytes beyond `filled_bytes`
  /// are not read.
  static constexpr std::size_t filled_bytes = 512;
  [[nodiscard]] std::vector<std::byte> encode_filled() const {
    std::vector<std::byte> bytes = encode();
    bytes.resize(filled_bytes);
    return bytes;
  }
  static offered_place decode_filled(std::span<const std::byte> bytes) {
    offered_place read = decode(bytes.first(filled_bytes));
    read.address.resize(::strnlen(read.address.data(), read.address.size()));
    return read;
  }
  ///@}
};

/// Returns the address of this end of a connection, without its port. Empty if it is a loopback
/// address.
inline std::string address_of_own_end(int socket) {
  tcp_address own;
  std::array<char, 64> host{};
  if (::getsockname(socket, own.get(), &own.size) != 0 || own.is_loopback() ||
      ::getnameinfo(own.get(), own.size, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST) != 0)
    return {};
  // A socket that listens for both families has IPv4 connections with such addresses.
  constexpr std::string_view mapped = "::ffff:";
  const std::string_view text{host.data()};
  return std::string{text.starts_with(mapped) ? text.substr(mapped.size()) : text};
}

/// Returns an address by which other ranks reach this host. `socket` is this rank's connection to
/// rank 0, and the result is the address of its own end. If that is a loopback address, rank 0 is
/// on this host, and the result is `settings.address`.
inline std::string address_for_others(const tcp_settings& settings, int socket) {
  std::string own = address_of_own_end(socket);
  return own.empty() ? settings.address : own;
}

}  // namespace peerbus::detail
