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
#include <vector>

#include <peerbus/bootstrap/detail/connection.hpp>
#include <peerbus/bootstrap/detail/rendezvous.hpp>
#include <peerbus/bootstrap/launch_settings.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/system_error.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus::detail {

/// An abstract socket address. It has no file, and its name becomes free when the process that
/// listens closes the socket or dies. The user id in the name keeps users apart. Another user can
/// still take the name, so both ends check the user of the other end.
struct rendezvous_point {
  sockaddr_un address{};
  socklen_t bytes = 0;

  explicit rendezvous_point(const launch_settings& settings) {
    std::string name = concat("peerbus/", ::geteuid(), "/", settings.port, "/", settings.address,
                              "/", settings.job);
    constexpr std::size_t room = sizeof address.sun_path - 1;
    if (name.size() > room) {
      // The end that does not fit is replaced by a hash, which keeps long names apart.
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

/// Returns the process at the other end of a Unix socket. Empty if the kernel does not report it.
inline std::optional<ucred> peer_of(int socket) noexcept {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) return std::nullopt;
  return peer;
}

/// A Unix socket where ranks of one host meet. Every process of the same user may call.
class local_rendezvous_place final : public rendezvous_place {
 public:
  explicit local_rendezvous_place(const launch_settings& settings)
      : settings_{settings}, point_{settings} {}

  [[nodiscard]] std::string describe() const override {
    return concat(settings_.address, ":", settings_.port,
                  settings_.job.empty() ? "" : concat(" (job ", settings_.job, ")"));
  }
  [[nodiscard]] std::size_t channels() const noexcept override { return 1; }

  [[nodiscard]] std::vector<unique_fd> open() override {
    std::vector<unique_fd> listeners;
    unique_fd listener = make_socket();
    if (::bind(listener.get(), point_.get(), point_.bytes) != 0) {
      if (errno == EADDRINUSE) return {};
      throw system_failure(concat("opening the meeting point ", describe()), errno);
    }
    if (::listen(listener.get(), SOMAXCONN) != 0)
      throw system_failure(concat("listening at ", describe()), errno);
    listeners.push_back(std::move(listener));
    return listeners;
  }
  [[nodiscard]] connection admit(unique_fd caller) override {
    const auto peer = peer_of(caller.get());
    return peer && peer->uid == ::geteuid() ? connection{std::move(caller)} : connection{};
  }
  [[nodiscard]] std::string describe_caller(const connection* caller) const override {
    if (caller == nullptr) return concat("process ", ::getpid());
    const auto peer = peer_of(caller->get());
    return concat("process ", peer ? peer->pid : 0);
  }

  [[nodiscard]] connection call(deadline /*until*/) override {
    unique_fd socket = make_socket();
    if (::connect(socket.get(), point_.get(), point_.bytes) != 0) {
      const int number = errno;
      // EAGAIN: the queue of callers at rank 0 is full.
      if (number != ECONNREFUSED && number != EAGAIN && number != EINTR)
        throw system_failure(
            concat("connecting to rank 0 by the abstract Unix socket of ", describe(),
                   number == EPERM ? ", which a sandbox (Landlock) may forbid" : ""),
            number);
      socket.reset();
      errno = number;
      return {};
    }
    const auto peer = peer_of(socket.get());
    if (!peer || peer->uid != ::geteuid())
      throw error{errc::system, concat("the meeting point ", describe(), " belongs to user ",
                                       peer ? std::to_string(peer->uid) : "unknown", ", expected ",
                                       ::geteuid(), ": give another MASTER_PORT")};
    return socket;
  }
  [[nodiscard]] std::string describe_silence(int /*number*/) const override {
    return "all ranks must be on one host, in one network namespace (container, pod), and run by "
           "one user";
  }

 private:
  /// Makes a socket that does not block.
  /// Throws: `error` system.
  [[nodiscard]] static unique_fd make_socket() {
    auto made =
        unique_fd::above_standard(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!made) throw system_failure("making a socket", errno);
    return made;
  }

  launch_settings settings_;
  rendezvous_point point_;
};

}  // namespace peerbus::detail
