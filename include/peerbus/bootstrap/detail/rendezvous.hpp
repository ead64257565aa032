// SPDX-License-Identifier: MIT
#pragma once

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <peerbus/bootstrap/detail/failure.hpp>
#include <peerbus/bootstrap/detail/launch_variables.hpp>
#include <peerbus/bootstrap/detail/os.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus::detail {

/// The first thing a rank says to rank 0 when they meet.
struct hello {
  static constexpr std::uint64_t expected_magic = 0x7265'6570'7375'6201;
  static constexpr std::uint32_t expected_version = 1;

  std::uint64_t magic = expected_magic;
  std::uint32_t version = expected_version;
  std::uint32_t rank = 0;
  std::uint64_t size = 0;
};
static_assert(sizeof(hello) == 24);

/// An abstract socket address: it has no file, and its name is free again when rank 0 closes it or
/// dies. The user id in the name keeps users apart; that nobody else took the name is checked.
struct meeting_point {
  sockaddr_un address{};
  socklen_t bytes = 0;

  explicit meeting_point(const launch_settings& settings) {
    std::string name = concat("peerbus/", ::geteuid(), "/", settings.port, "/", settings.address,
                              "/", settings.job);
    constexpr std::size_t room = sizeof address.sun_path - 1;
    if (name.size() > room) {
      // Long names keep apart by a hash in place of what does not fit.
      std::uint64_t hash = 0xcbf2'9ce4'8422'2325;
      for (const char c : name)
        hash = (hash ^ static_cast<unsigned char>(c)) * 0x0000'0100'0000'01b3;
      const std::string digits = std::to_string(hash);
      name = name.substr(0, room - digits.size()) + digits;
    }
    address.sun_family = AF_UNIX;
    std::copy(name.begin(), name.end(), address.sun_path + 1);  // The first byte stays zero.
    bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }

  [[nodiscard]] const sockaddr* get() const noexcept {
    return reinterpret_cast<const sockaddr*>(&address);
  }
};

/// "127.0.0.1:29500", for messages.
inline std::string describe_place(const launch_settings& settings) {
  return concat(settings.address, ":", settings.port,
                settings.job.empty() ? "" : concat(" (job ", settings.job, ")"));
}

/// The process at the other end. Empty if the kernel does not tell.
inline std::optional<ucred> peer_of(const unique_fd& socket) noexcept {
  ucred who{};
  socklen_t bytes = sizeof who;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &who, &bytes) != 0) return std::nullopt;
  return who;
}

/// Throws: `error` system.
inline unique_fd stream_socket() {
  unique_fd made{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  if (!made) throw system_failure("making a socket", errno);
  return made;
}

}  // namespace peerbus::detail
