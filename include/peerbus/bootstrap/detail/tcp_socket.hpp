// SPDX-License-Identifier: MIT
#pragma once

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <peerbus/bootstrap/detail/os.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/system_error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus::detail {

/// An IPv4 or IPv6 address with its port.
struct tcp_address {
  sockaddr_storage bytes{};
  socklen_t size = sizeof(sockaddr_storage);

  [[nodiscard]] const sockaddr* get() const noexcept {
    return reinterpret_cast<const sockaddr*>(&bytes);
  }
  [[nodiscard]] sockaddr* get() noexcept { return reinterpret_cast<sockaddr*>(&bytes); }
  [[nodiscard]] int family() const noexcept { return bytes.ss_family; }

  friend bool operator==(const tcp_address& a, const tcp_address& b) noexcept {
    return a.size == b.size && std::memcmp(&a.bytes, &b.bytes, a.size) == 0;
  }

  /// Returns whether the address can only be reached from this host.
  [[nodiscard]] bool is_loopback() const noexcept {
    if (family() == AF_INET) {
      sockaddr_in four{};
      std::memcpy(&four, &bytes, sizeof four);
      return ntohl(four.sin_addr.s_addr) >> 24 == 127;
    }
    if (family() != AF_INET6) return false;
    sockaddr_in6 six{};
    std::memcpy(&six, &bytes, sizeof six);
    if (IN6_IS_ADDR_V4MAPPED(&six.sin6_addr)) return six.sin6_addr.s6_addr[12] == 127;
    return IN6_IS_ADDR_LOOPBACK(&six.sin6_addr) != 0;
  }
};

/// Returns text such as "10.0.0.1:29500" or "[::1]:29500".
inline std::string join_host_port(std::string_view host, std::string_view port) {
  const bool bare_six = host.find(':') != std::string_view::npos && host.front() != '[';
  return bare_six ? concat("[", host, "]:", port) : concat(host, ":", port);
}

inline std::string describe_address(const tcp_address& address) {
  std::array<char, 64> host{};
  std::array<char, 16> port{};
  if (::getnameinfo(address.get(), address.size, host.data(), host.size(), port.data(), port.size(),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return "an unknown address";
  return join_host_port(host.data(), port.data());
}

inline std::string describe_addresses(const std::vector<tcp_address>& addresses) {
  std::string text;
  for (const tcp_address& address : addresses)
    text += concat(text.empty() ? "" : ", ", describe_address(address));
  return text;
}

/// Describes the other end of a connection, for messages.
inline std::string describe_far_end(int socket) {
  tcp_address peer_address;
  if (::getpeername(socket, peer_address.get(), &peer_address.size) != 0)
    return "an unknown address";
  return describe_address(peer_address);
}

/// Returns all IPv4 and IPv6 addresses of `host`. If a name server does not answer or does not know
/// the name, it is asked again until `until`, because the name of a pod or of a virtual machine
/// exists only once it runs. A single request may take as long as the system's resolver allows
/// (resolv.conf), regardless of `until`.
/// Throws: `error` system with the resolver's words.
inline std::vector<tcp_address> resolve(std::string host, std::uint16_t port, deadline until) {
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  const std::string service = std::to_string(port);
  constexpr std::chrono::milliseconds longest_pause{1000};
#ifdef EAI_NODATA
  constexpr int no_data = EAI_NODATA;  // The name exists, but has no address yet.
#else
  constexpr int no_data = EAI_NONAME;
#endif
  for (std::chrono::milliseconds pause{100};; pause = std::min(2 * pause, longest_pause)) {
    addrinfo* found = nullptr;
    const int code = ::getaddrinfo(host.c_str(), service.c_str(), &hints, &found);
    const int number = errno;
    const bool may_exist_later = code == EAI_AGAIN || code == EAI_NONAME || code == no_data;
    if (may_exist_later && !until.expired()) {
      poll_for({}, until, pause);
      continue;
    }
    if (code != 0)
      throw error{errc::system,
                  concat("MASTER_ADDR '", host, "' cannot be resolved: ",
                         code == EAI_SYSTEM ? describe_errno(number) : ::gai_strerror(code),
                         "; expected the name or address of rank 0's host")};
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner{found, ::freeaddrinfo};
    std::vector<tcp_address> addresses;
    for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
      if (entry->ai_family != AF_INET && entry->ai_family != AF_INET6) continue;
      if (entry->ai_addrlen > sizeof(sockaddr_storage)) continue;
      tcp_address address;
      std::memcpy(&address.bytes, entry->ai_addr, entry->ai_addrlen);
      address.size = entry->ai_addrlen;
      // The system's table of hosts may list an address twice.
      if (std::find(addresses.begin(), addresses.end(), address) == addresses.end())
        addresses.push_back(address);
    }
    if (addresses.empty())
      throw error{errc::system, concat("MASTER_ADDR '", host, "' has no IPv4 or IPv6 address")};
    return addresses;
  }
}

/// Sets a socket option. Ignores a failure, because the socket also works without the option.
inline void set_option(int socket, int level, int name, int value) noexcept {
  // A failure is ignored, because the socket also works without the option.
  (void)::setsockopt(socket, level, name, &value, sizeof value);
}

/// Sets the options of a connection between two ranks. Small messages leave at once. If a host goes
/// away unannounced, an idle connection notices it after `limit`. A `watch` connection, which
/// carries almost nothing, also ends if its bytes are not acknowledged within `limit`. Other
/// connections do not, because a rank may be slow in reading a large message.
inline void tune_connection(int socket, bool watch, std::chrono::milliseconds limit) noexcept {
  constexpr int probes = 5;
  // The kernel takes whole seconds.
  const int seconds =
      std::max(2, static_cast<int>(std::chrono::ceil<std::chrono::seconds>(limit).count()));
  const int interval = std::max(1, 2 * seconds / (3 * probes));
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, std::max(1, seconds - interval * probes));
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, interval);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, probes);
  if (watch) set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(limit.count()));
}

inline unique_fd tcp_socket(int family) noexcept {
  return unique_fd::above_standard(
      ::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
}

/// Opens a port.
/// Returns: a listening socket, or an empty one with errno set.
inline unique_fd listen_at(const tcp_address& address) noexcept {
  unique_fd socket = tcp_socket(address.family());
  if (!socket) return socket;
  // Lingering connections of an earlier group must not keep the port from being opened.
  set_option(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.family() == AF_INET6) {
    const bool any =
        IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6*>(&address.bytes)->sin6_addr);
    set_option(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, any ? 0 : 1);
  }
  if (::bind(socket.get(), address.get(), address.size) != 0 ||
      ::listen(socket.get(), SOMAXCONN) != 0) {
    const int number = errno;
    socket.reset();
    errno = number;
  }
  return socket;
}

/// Returns the address that stands for every address of this host in `family`. The IPv6 address
/// also covers IPv4 if the socket is not IPv6 only.
inline tcp_address any_address(int family, std::uint16_t port) noexcept {
  tcp_address any;
  if (family == AF_INET6) {
    sockaddr_in6 six{};
    six.sin6_family = AF_INET6;
    six.sin6_port = htons(port);
    std::memcpy(&any.bytes, &six, sizeof six);
    any.size = sizeof six;
  } else {
    sockaddr_in four{};
    four.sin_family = AF_INET;
    four.sin_port = htons(port);
    std::memcpy(&any.bytes, &four, sizeof four);
    any.size = sizeof four;
  }
  return any;
}

/// Returns whether a socket is connected to itself. That happens if no process listens at a port
/// from which the system also picks ports for callers. The system may then give a caller the very
/// port that it calls.
inline bool reached_itself(const unique_fd& socket) noexcept {
  tcp_address here;
  tcp_address there;
  return ::getsockname(socket.get(), here.get(), &here.size) == 0 &&
         ::getpeername(socket.get(), there.get(), &there.size) == 0 && here == there;
}

/// Tries each address once, for at most a second.
/// Returns: the first connection that succeeds, or an empty one with errno set.
inline unique_fd connect_once(const std::vector<tcp_address>& addresses, deadline until) {
  int number = ECONNREFUSED;
  for (const tcp_address& address : addresses) {
    unique_fd socket = tcp_socket(address.family());
    if (!socket) {
      number = errno;
      continue;
    }
    int result = ::connect(socket.get(), address.get(), address.size) == 0 ? 0 : errno;
    if (result == EINPROGRESS || result == EINTR) {
      const auto patience = earlier(until, deadline::after(std::chrono::seconds{1}));
      std::vector<pollfd> entries{{socket.get(), POLLOUT, 0}};
      do {
        poll_for(entries, patience, std::chrono::milliseconds{1000});
      } while (entries[0].revents == 0 && !patience.expired());
      socklen_t size = sizeof result;
      if (entries[0].revents == 0)
        result = ETIMEDOUT;
      else if (::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &result, &size) != 0)
        result = errno;
    }
    if (result == 0 && reached_itself(socket)) result = ECONNREFUSED;
    if (result == 0) return socket;
    number = result;
  }
  errno = number;
  return {};
}

}  // namespace peerbus::detail
